"""Own data in whole runs: equal on any number of ranks, and nothing left behind by a mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pfl_lightning.cli.fit import run
from tests.helpers.own_files import write_folders, write_table

CONFIG = """
algorithm: FedPer
task: {class_path: Classification, init_args: {net: {class_path: MLP, init_args: {hidden: [8]}}}}
data: {class_path: ClientFolders, init_args: {source: photos, size: 8, validation_share: 0.2}}
loop: {rounds: 2, eval_every: 1}
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PFL_DATA", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_results_are_equal_on_one_and_two_ranks(tmp_path: Path) -> None:
    write_folders(tmp_path / "photos")
    (tmp_path / "mine.yaml").write_text(CONFIG)
    hashes = set()
    for ranks in ("1", "2"):
        assert run(["--config", "mine.yaml", "--fabric.devices", ranks, "--run_dir", ranks]) == 0
        summary = json.loads((tmp_path / ranks / "summary.json").read_text())
        hashes.add((summary["model_sha256"], summary["clients_sha256"]))
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("ann,0,1.0,oops", [], "data: people.csv line 32: 'oops' in column weight is not a number"),
        ("dan,0,1.0,2.0", [], "data.partition: client dan has a single sample and needs one to train on"),
        ("ann,9999,1.0,2.0", [], "data: people.csv line 32: label 9999 is not a class"),
        ("", ["--data.source", "nowhere.csv"], "data.source: nowhere.csv does not exist"),
        (
            "",
            ["--data.label", "kind"],
            "data.label: people.csv has no column kind; it has client, label, height, weight",
        ),
        ("", ["--data.partition", "IID"], "data.num_clients: it is missing"),
        ("", ["--data.transforms", "[RandomCrop]"], "data.transforms: RandomCrop cannot be made: "),
        ("", ["--data.normalize", "none"], "data.normalize: 'none' is not allowed; use standard"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, options: list[str], message: str
) -> None:
    path = write_table(tmp_path / "people.csv")
    path.write_text(path.read_text() + line)
    assert run(["--algorithm", "FedAvg", "--data", "Table", "--data.source", "people.csv", *options]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"pfl-fit: error: {message}")
    assert error.count("\n") == 1
    assert {entry.name for entry in tmp_path.iterdir()} <= {"people.csv", "data"}
    assert not list(tmp_path.rglob("*.tmp"))
