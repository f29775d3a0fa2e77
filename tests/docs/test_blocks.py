"""Every command and every Python block of README and of the guides works as printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pfl_lightning.report import page as pages
from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/start/*.md")))]
PAGES += [f"docs/{name}.md" for name in ("checkpoints", "cluster", "compare", "export", "gpus", "report", "results")]
ELSEWHERE = {
    "docs/papers.md": "tests/test_papers.py builds the cells of its experiment files",
    "docs/own_data.md": "tests/data",
    "docs/own_model.md": "tests/tasks",
    "docs/add_an_algorithm.md": "tests",
}
"""Pages whose blocks another test runs, and where it is."""


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_their_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder in ("configs", "docs", "tools"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setattr(pages, "FORMATS", {"svg": pages.FORMATS["svg"]})  # tests/report writes the others
    for block in blocks(ROOT / page):
        block.run(tmp_path)


def test_every_page_with_commands_is_tested() -> None:
    for path in ROOT.glob("docs/**/*.md"):
        page = str(path.relative_to(ROOT))
        shown = [block for block in blocks(path) if block.language == "python" or "pfl-" in block.text]
        assert not shown or page in PAGES or page in ELSEWHERE, f"{page} shows commands that no test runs"


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```\npfl-fit --config missing.yaml\n```\n")
    with pytest.raises(AssertionError, match="ended with 2"):
        blocks(tmp_path / "page.md")[0].run(tmp_path)
    (tmp_path / "page.md").write_text("```\nrm -rf everything\n```\n")
    with pytest.raises(AssertionError, match="no test can run"):
        blocks(tmp_path / "page.md")[0].run(tmp_path)
