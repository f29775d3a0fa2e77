"""The stranger's path copies lines that the pages print. The tool itself takes half an hour."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools/first_ten_minutes.py"))


@pytest.mark.parametrize("name", TOOL["STEPS"])
def test_a_page_prints_what_a_step_copies(name: str, tmp_path: Path) -> None:
    step = TOOL["STEPS"][name]
    commands = TOOL["copied"](step, (ROOT / step.page).read_text(), tmp_path)
    assert len(commands) == len(step.lines)
    assert {path.name for path in tmp_path.iterdir()} == set(step.blocks)


def test_a_line_that_no_page_prints_ends_the_walk(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not print: pfl-fit --everything"):
        TOOL["copied"](TOOL["Step"]("README.md", ("pfl-fit --everything",)), "```\nmake fit\n```\n", tmp_path)


@pytest.mark.parametrize(("commands", "code"), [("pfl-fit done", 1), ("pfl-fit done\nmkdir -p runs/x", 0)])
def test_a_step_that_leaves_no_files_ends_the_walk(
    commands: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a repository, an environment and a command that do nothing."""
    repository, venv = tmp_path / "repository", tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/activate").write_text("pfl-fit() { true; }\n")
    repository.mkdir()
    (repository / "README.md").write_text(f"```\n{commands}\n```\n")
    step = TOOL["Step"]("README.md", tuple(commands.splitlines()), "runs/x")
    changed = TOOL["main"].__globals__
    monkeypatch.setitem(changed, "STEPS", {"run": step})
    monkeypatch.setitem(changed, "clone_to", lambda folder: shutil.copytree(repository, folder))
    monkeypatch.setitem(changed, "conditions", lambda python: "a machine")
    monkeypatch.setattr(sys, "argv", ["first_ten_minutes.py", "--venv", str(venv)])
    assert TOOL["main"]() == code
    assert ("missing: runs/x" in capsys.readouterr().out) == bool(code)
