"""Reading the files of a run: a value that is not finite is shown, and a damaged file is named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.report.groups import group_runs, reported
from pfl_lightning.report.page import _row
from pfl_lightning.report.picked import last_value
from pfl_lightning.report.run_data import read_run

FILES = {
    "config.yaml": "algorithm: {class_path: pfl_lightning.algorithms.Ditto}\nseed: 0\n",
    "metrics.csv": "round,all_acc_before\n1,0.5\n2,0.75\n3,\n4,nan\n",
    "summary.json": '{"best": {"all_acc_before": 0.75}, "last": {"all_acc_before": null}}',
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_last_value_that_is_nan_is_the_last_value(run_dir: Path) -> None:
    """A client has diverged in round 4. Round 3 had no evaluation."""
    run = read_run(run_dir)
    shown = reported([run])
    rounds, values = run.series("all_acc_before")
    assert rounds.tolist() == [1, 2, 4]
    assert math.isnan(values[-1])
    assert shown.metric.higher_is_better
    row = _row("Ditto", run, shown)
    assert row["last"] == "nan %"
    assert row["best"] == "75.00 % (round 2)"
    assert math.isnan(last_value(group_runs([run])[0], shown))


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("summary.json", b"{", "summary.json cannot be read: it is damaged"),
        ("summary.json", b"[1]", "summary.json is not the summary of a run"),
        ("metrics.csv", b"", "metrics.csv cannot be read: it is damaged"),
        ("metrics.csv", b"round,a\n1", "metrics.csv cannot be read: it is damaged"),
        ("metrics.csv", b"\xff", "metrics.csv cannot be read: it is damaged"),
        ("config.yaml", b"a: [", "config.yaml cannot be read: it is damaged"),
        ("config.yaml", b"algorithm: 3", "config.yaml is not the config of a run"),
        ("clients.csv", b"a,b\n1,2\n", "clients.csv cannot be read: it is damaged"),
        ("personal.csv", b"a,b\n1,2\n", "personal.csv cannot be read: it is damaged"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: bytes, line: str, run_dir: Path) -> None:
    (run_dir / name).write_bytes(content)
    with pytest.raises(ConfigError, match=line) as error:
        read_run(run_dir)
    assert str(error.value).startswith(f"run: {run_dir / name} ")


def test_a_missing_table_is_named(run_dir: Path) -> None:
    (run_dir / "metrics.csv").unlink()
    with pytest.raises(ConfigError, match=r"metrics\.csv cannot be read: No such file or directory"):
        read_run(run_dir)
