"""Hooks of mkdocs: pages that are made from the code, and Markdown that reads on GitHub as it does on the site.

Pages under docs/ also read well in the repository. There, links such as `../pfl_lightning/loop.py` lead to the source.
The site does not contain the source, so these links become plain text.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "docs")]

from settings_page import settings_page  # noqa: E402

COMMANDS = ("pfl-fit", "pfl-compare", "pfl-report", "pfl-export", "pfl-personalize")
COLUMNS = 100
"""Width of a help text on the site."""
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
MATH = re.compile(r"^```math\n(.*?)\n```$", re.M | re.S)
LIST = re.compile(r"^(?!\s|[-*] |\d+\. |\||#)(.+)\n(?=(?:[-*]|1\.) )", re.M)


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "cite.md": cite_page(),
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Render formulas, turn links out of the site into plain text, let a list follow a line of text as on GitHub."""
    if page.file.src_uri == "changelog.md":
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    return spaced_lists(inside_links(rendered_formulas(markdown), posixpath.dirname(page.file.src_uri)))


def rendered_formulas(markdown: str) -> str:
    """The text with MathML, which browsers draw without a script or a network, in place of TeX."""
    from latex2mathml.converter import convert

    def rendered(formula: re.Match[str]) -> str:
        # parts stand side by side, or below each other on a phone
        drawn = "".join(convert(part.strip(), display="block") for part in formula[1].split("\\qquad"))
        if "\\" in drawn:  # a command that the converter does not know stays as it is
            raise ValueError(f"the site cannot show this formula: {formula[1]}")
        return f'<div class="formula">{drawn}</div>'

    return MATH.sub(rendered, markdown)


def inside_links(markdown: str, folder: str) -> str:
    """The text of a page in a folder of docs, with plain words in place of links that leave docs."""

    def kept(link: re.Match[str]) -> str:
        leaves = posixpath.normpath(posixpath.join(folder, link[2])).startswith("..")
        return link[1] if leaves else link[0]

    return LINK.sub(kept, markdown)


def spaced_lists(markdown: str) -> str:
    """The text with an empty line before each list, which Python's Markdown needs and GitHub does not."""
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LIST.sub(r"\1\n\n", markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LIST.sub(r"\1\n\n", markdown[end:])])


def cite_page() -> str:
    """How to cite the package, with the file that says so."""
    words = (
        "Please cite the package and the papers of the methods that you use. "
        "[Methods](algorithms.md) names the paper of each. The repository has this as `CITATION.cff`, which GitHub and "
        "reference managers read:"
    )
    return f"# How to cite\n\n{words}\n\n```yaml\n{(ROOT / 'CITATION.cff').read_text().strip()}\n```\n"


def commands_page() -> str:
    """The help text of every command."""
    parts = ["# Commands\n\nThese are the help texts of the commands, as `--help` prints them, and what `make` can do."]
    for command in COMMANDS:
        main = importlib.import_module(f"pfl_lightning.cli.{command.removeprefix('pfl-')}").main
        printed, arguments = io.StringIO(), sys.argv
        sys.argv = [command, "--help"]
        os.environ["COLUMNS"] = str(COLUMNS)
        try:
            with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
                main()
        finally:
            sys.argv = arguments
        shown = re.sub(".\b", "", printed.getvalue().strip())  # a backspace, as a terminal shows it
        parts.append(f"## {command}\n\n```text\n{shown}\n```")
    targets = re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.M)
    shown = "\n".join(f"make {name:<14}{about}" for name, about in targets)
    parts.append(f"## make\n\nIn a clone of the repository:\n\n```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n"
