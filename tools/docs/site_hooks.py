"""Hooks of mkdocs: pages that are made from the code, and links that lead out of the site.

Pages under docs/ also read well in the repository. There, links such as `../pfl_lightning/loop.py` lead to the source.
The site does not contain the source, so these links become plain text.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMANDS = ("pfl-fit", "pfl-compare", "pfl-report", "pfl-export", "pfl-personalize")
KEYS = {
    "algorithm": "Algorithms",
    "task": "Tasks",
    "task.net": "Nets",
    "data": "Data",
    "data.partition": "Partitions",
}
OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+(?!docs/)[^)]*\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {"changelog.md": (ROOT / "CHANGELOG.md").read_text(), "reference/commands.md": commands_page()}
    pages["reference/settings.md"] = settings_page()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links out of the site into plain text."""
    if page.file.src_uri == "changelog.md":
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    return OUTSIDE.sub(r"\1", markdown)


def commands_page() -> str:
    """The help text of every command."""
    parts = ["# Commands\n\nThese are the help texts of the commands, as `--help` prints them."]
    for command in COMMANDS:
        module = command.removeprefix("pfl-")
        call = f"import sys; sys.argv[0] = '{command}'; from pfl_lightning.cli.{module} import main; main()"
        ran = subprocess.run([sys.executable, "-c", call, "--help"], capture_output=True, text=True, check=True)
        parts.append(f"## {command}\n\n```text\n{ran.stdout.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """Every class that a config can name, with its settings and defaults."""
    sys.path.insert(0, str(ROOT))
    from pfl_lightning.cli.classes import offered
    from pfl_lightning.cli.help import class_help

    parts = [
        "# Settings\n\nEvery class that a config can name, with its settings and defaults. The settings of `loop`, "
        "`fabric`, `checkpoint`, `store` and `report` are in the help text of [pfl-fit](commands.md#pfl-fit)."
    ]
    for key, title in KEYS.items():
        parts.append(f"## {title}: `{key}`")
        parts += [f"### {name}\n\n```text\n{class_help(key, name).strip()}\n```" for name in offered(key)]
    return "\n\n".join(parts) + "\n"
