"""metrics.csv and summary.json: exact content, and never half of it."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pfl_lightning.foundation.errors import RunError
from pfl_lightning.monitor import RoundRecord, read_metrics
from pfl_lightning.monitor.tables import MetricsTable, restore_metrics, write_summary


def test_rows_have_all_columns_and_empty_cells(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "metrics.csv", ["seconds", "acc_before", "up_bytes", "all_acc_before"])
    table.write(RoundRecord(1, {"seconds": 0.5, "acc_before": 0.1, "up_bytes": 12}))
    table.write(
        RoundRecord(2, {"all_acc_before": np.float64(0.25), "seconds": np.float32(0.1), "up_bytes": np.int64(7)})
    )
    table.close()
    table.close()
    assert (tmp_path / "metrics.csv").read_text() == (
        "round,seconds,acc_before,up_bytes,all_acc_before\n1,0.5,0.1,12,\n2,0.10000000149011612,,7,0.25\n"
    )


def test_round_is_first_even_if_named_among_the_columns(tmp_path: Path) -> None:
    MetricsTable(tmp_path / "metrics.csv", ["seconds", "round"]).close()
    assert (tmp_path / "metrics.csv").read_text() == "round,seconds\n"


def test_header_is_written_once(tmp_path: Path) -> None:
    for number in (1, 2):
        table = MetricsTable(tmp_path / "metrics.csv", ["seconds"])
        table.write(RoundRecord(number, {"seconds": 1.0}))
        table.close()
    assert (tmp_path / "metrics.csv").read_text() == "round,seconds\n1,1.0\n2,1.0\n"


def test_numbers_read_back_exactly(tmp_path: Path) -> None:
    values = [1 / 3, 1e-300, 0.1 + 0.2, math.inf, 2.0**60]
    table = MetricsTable(tmp_path / "metrics.csv", ["x", "y"])
    for number, value in enumerate(values, 1):
        table.write(RoundRecord(number, {"x": value}))
    table.close()
    metrics = read_metrics(tmp_path / "metrics.csv")
    assert metrics["x"] == values
    assert metrics["round"] == [1, 2, 3, 4, 5]
    assert all(math.isnan(value) for value in metrics["y"])


def test_unknown_column_is_refused_by_name(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "metrics.csv", ["seconds"])
    with pytest.raises(ValueError, match="extra"):
        table.write(RoundRecord(1, {"extra": 1.0}))
    table.close()
    assert (tmp_path / "metrics.csv").read_text() == "round,seconds\n"


def test_each_row_is_one_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: calls.append(data) or write(file, data))
    table = MetricsTable(tmp_path / "metrics.csv", ["a", "b"])
    table.write(RoundRecord(1, {"a": 1.0, "b": 2.0}))
    table.close()
    assert calls == [b"round,a,b\n", b"1,1.0,2.0\n"]


def test_disk_that_takes_half_a_row_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = MetricsTable(tmp_path / "metrics.csv", ["a"])
    table.write(RoundRecord(1, {"a": 1.0}))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    with pytest.raises(RunError, match="disk is full"):
        table.write(RoundRecord(2, {"a": 2.0}))
    table.close()
    assert (tmp_path / "metrics.csv").read_text() == "round,a\n1,1.0\n"


def test_full_disk_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = MetricsTable(tmp_path / "metrics.csv", ["a"])

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match=r"metrics\.csv: No space left"):
        table.write(RoundRecord(1, {"a": 1.0}))
    table.close()


def test_a_kill_at_any_moment_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = (
        "import itertools, pathlib, sys\n"
        "from pfl_lightning.monitor import RoundRecord\n"
        "from pfl_lightning.monitor.tables import MetricsTable\n"
        "columns = [f'c{i}' for i in range(200)]\n"
        "table = MetricsTable(pathlib.Path(sys.argv[1]), columns)\n"
        "for r in itertools.count(1):\n"
        "    table.write(RoundRecord(r, {c: r / 3 for c in columns}))\n"
        "    r == 50 and print('going', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"going\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    text = path.read_text()
    rows = text.splitlines()
    assert text.endswith("\n")
    assert len(rows) > 50
    assert {row.count(",") for row in rows} == {200}
    assert rows[-1].split(",")[-1] == repr((len(rows) - 1) / 3)


def test_summary_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    summary = {
        "algorithm": "FedAvg",
        "best": np.float32(0.5),
        "counts": np.array([1, 2]),
        "run": Path("runs/a"),
        "missing": float("nan"),
        "nested": {"rounds": (1, np.inf)},
        "commit": None,
    }
    write_summary(path, summary)
    assert json.loads(path.read_text()) == {
        "algorithm": "FedAvg",
        "best": 0.5,
        "counts": [1, 2],
        "run": "runs/a",
        "missing": None,
        "nested": {"rounds": [1, None]},
        "commit": None,
    }
    assert os.listdir(tmp_path) == ["summary.json"]


def test_summary_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, {"rounds": 1})
    with pytest.raises(TypeError):
        write_summary(path, {"rounds": 2, "bad": object()})

    def broken(source: Path, target: Path) -> None:
        assert json.loads(source.read_text()) == {"rounds": 3}  # complete before it takes the name
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(RunError, match="Input/output error"):
        write_summary(path, {"rounds": 3})
    assert json.loads(path.read_text()) == {"rounds": 1}
    assert os.listdir(tmp_path) == ["summary.json"]


SAVED = b"round,loss\n1,0.5\n2,0.25\n"


@pytest.mark.parametrize("rest", [b"", b"1", b"12,0.", b"\0\0\0\0", b"\xff\xfe\n", b"3,0.1\n4,0.05\n"])
def test_rows_after_the_checkpoint_are_dropped(rest: bytes, tmp_path: Path) -> None:
    """Complete rows of later rounds, the first digits of one that a crash left, or bytes that are not text."""
    path = tmp_path / "metrics.csv"
    path.write_bytes(SAVED + rest)
    assert not restore_metrics(path, ["loss"], SAVED)
    assert path.read_bytes() == SAVED


@pytest.mark.parametrize("damaged", [b"", SAVED[:-3], SAVED.replace(b"25", b"26"), SAVED.replace(b"0", b"\xff")])
def test_damaged_rows_are_restored_and_reported(damaged: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(damaged)
    assert restore_metrics(path, ["loss"], SAVED)
    assert path.read_bytes() == SAVED


def test_a_deleted_table_is_restored(tmp_path: Path) -> None:
    assert restore_metrics(tmp_path / "metrics.csv", ["loss"], SAVED)
    assert (tmp_path / "metrics.csv").read_bytes() == SAVED


def test_columns_may_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(SAVED)
    assert not restore_metrics(path, ["acc", "loss"], SAVED)
    assert path.read_text() == "round,acc,loss\n1,,0.5\n2,,0.25\n"


def test_a_link_is_replaced_and_its_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(SAVED)
    (tmp_path / "metrics.csv").symlink_to(tmp_path / "mine.csv")
    restore_metrics(tmp_path / "metrics.csv", ["loss"], SAVED)
    MetricsTable(tmp_path / "metrics.csv", ["loss"]).write(RoundRecord(3, {"loss": 0.1}))
    assert (tmp_path / "mine.csv").read_bytes() == SAVED


def test_the_table_knows_its_content(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(SAVED)
    table = MetricsTable(path, ["loss"])
    table.write(RoundRecord(3, {"loss": 0.125}))
    table.close()
    assert table.text == path.read_bytes() == SAVED + b"3,0.125\n"
