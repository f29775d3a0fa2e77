"""The code blocks of a Markdown page, with the marks that say how a test runs them.

A mark is a comment in front of a block:

- `<!-- test: with OPTIONS -->` adds options to every command of the block, to make it short;
- `<!-- test: with COMMAND: OPTIONS; COMMAND: OPTIONS -->` does so for the commands that it names;
- `<!-- test: save FILE -->` writes a block to a file;
- `<!-- test: skip REASON -->` leaves a block out.
"""

from __future__ import annotations

import glob
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pfl_lightning.cli import compare, export, fit, personalize, report

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:<!-- test: (with|save|skip) ?(.*?) -->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _exit_code(main: Callable[[list[str]], object], words: list[str]) -> int:
    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _script(words: list[str]) -> int:
    """`python FILE …` in this process."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(sys, "argv", words)
        return _exit_code(lambda _: runpy.run_path(words[0], run_name="__main__"), words)


def _tests(words: list[str]) -> int:
    """`pytest FILE` in this process: every test of a file without fixtures."""
    for name, test in runpy.run_path(words[0]).items():
        if name.startswith("test_"):
            test()
    return 0


def _make(words: list[str]) -> int:
    """`make TARGET`, without doing it: the target exists. CI runs `make` itself."""
    return subprocess.run(["make", "--dry-run", "-C", ROOT, *words], capture_output=True, check=False).returncode


def _activate(words: list[str]) -> int:
    """`. .venv/bin/activate`: the environment that `make` makes."""
    folder = re.search(r"^VENV +\?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return int(not folder or words != [f"{folder[1]}/bin/activate"])


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "pfl-fit": fit.run,
    "pfl-compare": compare.run,
    "pfl-report": lambda words: _exit_code(report.main, words),
    "pfl-export": lambda words: _exit_code(export.main, words),
    "pfl-personalize": lambda words: _exit_code(personalize.main, words),
    "python": _script,
    "pytest": _tests,
    "make": _make,
    ".": _activate,
}


@dataclass(frozen=True)
class Block:
    """A block of code and how to run it."""

    mark: str
    detail: str
    language: str
    text: str

    def run(self, folder: Path) -> None:
        """Run the block in the working directory `folder`. Raises if a command fails."""
        if self.mark == "skip":
            assert self.detail, "a skipped block says why"
        elif self.mark == "save":
            (folder / self.detail).write_text(self.text)
        elif self.language == "python":
            (folder / "block.py").write_text(self.text)
            runpy.run_path(str(folder / "block.py"), run_name="__main__")
        else:
            for words in self.commands():
                code = COMMANDS[words[0]](words[1:])
                assert code == 0, f"{shlex.join(words)} ended with {code}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each command, with file names expanded as a shell does."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            assert words[0] in COMMANDS, f"no test can run: {line}"
            found = [sorted(glob.glob(word)) or [word] for word in words]
            yield [word for group in found for word in group] + self._added(words[0])

    def _added(self, command: str) -> list[str]:
        """The options that the mark adds to a command."""
        if not re.match(r"[\w-]+: ", self.detail):
            return shlex.split(self.detail)
        parts = dict(part.split(": ", 1) for part in self.detail.split("; "))
        return shlex.split(parts.get(command, ""))


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are commands, Python, or files to save."""
    found = [Block(*match.groups(default="")) for match in BLOCK.finditer(page.read_text())]
    return [block for block in found if block.mark == "save" or block.language in ("", "sh", "bash", "python")]
