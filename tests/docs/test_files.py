"""The page of files lists what a run writes: every file, every column, every key of summary.json."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from pfl_lightning.cli.fit import run

PAGE = (Path(__file__).parents[2] / "docs/reference/files.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M))


def _names(text: str) -> set[str]:
    """The names in the first column of the tables."""
    return {name for row in re.findall(r"^\| (.*?) \|", text, re.M) for name in re.findall(r"`(.+?)`", row)}


def _unlisted(found: list[str], listed: set[str]) -> list[str]:
    """Names that are neither listed nor begin as a listed one that ends with …, averages left out."""
    starts = tuple(name.removesuffix("…") for name in listed if name.endswith("…"))
    names = [re.sub("_(pooled|worst10)$", "", name) for name in found]
    return [name for name in names if name not in listed and not name.startswith(starts or "?")]


def test_the_page_lists_what_a_run_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = "--algorithm FedPer --task.net MLP --task.net.hidden [4] --data.num_clients 4 --loop.rounds 1"
    more = "--data.validation_share 0.2 --loop.eval_clients 2 --fabric.devices 1 --run_dir out --quiet"
    assert run([*words.split(), *more.split()]) == 0
    files = [path.name + "/" * path.is_dir() for path in Path("out").iterdir()]
    assert not _unlisted(files, _names(PAGE.partition("## ")[0]))
    for table in ("metrics.csv", "clients.csv", "client_facts.csv", "personal.csv"):
        header = (Path("out") / table).read_text().partition("\n")[0].split(",")
        assert not _unlisted(header, _names(SECTIONS[table])), table
    summary = json.loads(Path("out/summary.json").read_text())
    assert not _unlisted(list(summary), _names(SECTIONS["summary.json"]))
    assert not _names(SECTIONS["summary.json"]) - set(summary) - {"data.validation_share", "loop.eval_clients"}
