"""Every command and every Python block of README, CONTRIBUTING and docs works as printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pfl_lightning.cli import fit
from pfl_lightning.compare import children
from pfl_lightning.report import page as pages
from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"docs/own_data.md": "data/test_own_data_docs.py", "docs/own_model.md": "tasks/test_own_model_docs.py"}
"""Pages whose blocks another test runs with every config of the page, and where it is below tests."""
PAGES = [
    page
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if (page := str(path.relative_to(ROOT))) not in ELSEWHERE and blocks(path)
]


class CellHere:
    """A cell of a comparison in this process: a new interpreter would import torch for seconds."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        assert command[:3] == [sys.executable, "-m", "pfl_lightning.cli"]
        self._code = fit.run([*command[3:], "--quiet"])

    def poll(self) -> int:
        return self._code


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_their_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder in ("configs", "docs", "tools"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setattr(children, "FitProcess", CellHere)
    monkeypatch.setattr(pages, "FORMATS", {"svg": pages.FORMATS["svg"]})  # tests/report writes the others
    for block in blocks(ROOT / page):
        block.run(tmp_path)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_another_test_runs_the_blocks_of_a_page(page: str) -> None:
    assert Path(page).name in (ROOT / "tests" / ELSEWHERE[page]).read_text()
    assert {line for block in blocks(ROOT / page) for line in block.text.splitlines() if line.startswith("pfl-")} <= {
        "pfl-fit --config mine.yaml"
    }


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```\npfl-fit --config missing.yaml\n```\n")
    with pytest.raises(AssertionError, match="ended with 2"):
        blocks(tmp_path / "page.md")[0].run(tmp_path)
    (tmp_path / "page.md").write_text("```\nrm -rf everything\n```\n")
    with pytest.raises(AssertionError, match="no test can run"):
        blocks(tmp_path / "page.md")[0].run(tmp_path)
