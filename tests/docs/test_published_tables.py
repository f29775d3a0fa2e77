"""Every published table is the one that its published cells make, byte for byte."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pfl_lightning.cli import compare
from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"^<!-- pfl-compare .+: begin -->$", re.MULTILINE)
PUBLISHED = [
    (path, words)
    for path in sorted(ROOT.glob("docs/*.md"))
    for block in blocks(path)
    if "--cells" in block.text and "--page" in block.text
    for words in replace(block, detail="").commands()
]
"""The commands that make a table of a page again, as the page prints them."""


def test_every_published_table_has_its_command() -> None:
    tables = [path for path in sorted(ROOT.glob("docs/*.md")) for _ in TABLE.findall(path.read_text())]
    assert tables == [page for page, _ in PUBLISHED]


@pytest.mark.parametrize(("page", "words"), PUBLISHED, ids=[words[1] for _, words in PUBLISHED])
def test_cells_make_the_table_of_the_page(
    page: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    copy = shutil.copy(page, tmp_path / page.name)
    place = words.index("--page") + 1
    assert ROOT / words[place] == page
    assert compare.run([*words[1:place], str(copy), *words[place + 1 :], "--out", "again", "--quiet"]) == 0
    assert copy.read_text() == page.read_text()
