"""The monitor as the loop uses it, and how a run ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_lightning.monitor import Monitor, RoundRecord

COLUMNS = ["seconds", "acc_before", "acc_after", "personal_share", "up_bytes", "down_bytes", "all_acc_before"]


def record(number: int) -> RoundRecord:
    return RoundRecord(number, {"seconds": 1.0, "acc_before": 0.5, "acc_after": 0.6, "all_acc_before": number / 10})


def test_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = Path("runs/fedavg/one")
    monitor = Monitor(run_dir, COLUMNS, total_rounds=2)
    assert not run_dir.exists()
    monitor.start({"algorithm": "FedAvg"}, "seed: 0\n", {})
    for number in (1, 2):
        monitor.round(record(number), samples=10)
    summary = {"algorithm": "FedAvg", "last": {"all_acc_before": 0.2}}
    monitor.finish(summary)
    monitor.close()
    assert json.loads((run_dir / "summary.json").read_text()) == summary
    assert (run_dir / "metrics.csv").read_text().splitlines()[1:] == ["1,1.0,0.5,0.6,,,,0.1", "2,1.0,0.5,0.6,,,,0.2"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "algorithm  FedAvg"
    assert "[2/2] before 50.0 %  after 60.0 %  all 20.0 %" in "\n".join(lines)
    assert lines[-2:] == ["run:     runs/fedavg/one", "curves:  tensorboard --logdir runs/fedavg"]
    assert max(map(len, lines)) <= 80


def test_interrupted_run_says_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(tmp_path, COLUMNS, total_rounds=9)
    monitor.start({}, "", {})
    for number in (1, 2):
        monitor.round(record(number), samples=10)
    monitor.interrupted(3)
    assert "Interrupted in round 3 of 9: metrics.csv holds 2 whole rounds." in capsys.readouterr().out
    assert not (tmp_path / "summary.json").exists()


def test_interrupted_before_the_start_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Monitor(tmp_path / "run", COLUMNS, total_rounds=9).interrupted(1)
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().out == ""


def test_silent_run_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(tmp_path, COLUMNS, total_rounds=1, console=False)
    monitor.start({"algorithm": "FedAvg"}, "", {})
    monitor.round(record(1), samples=10)
    monitor.finish({"last": {"all_acc_before": 0.1}})
    assert capsys.readouterr() == ("", "")


def test_the_first_metric_is_the_one_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(
        tmp_path, ["rmse_before", "mae_before"], total_rounds=2, metrics={"rmse": "lower", "mae": "lower"}
    )
    monitor.start({}, "", {})
    monitor.round(RoundRecord(1, {"rmse_before": 2.0, "mae_before": 9.0}), samples=10)
    monitor.round(RoundRecord(2, {"rmse_before": 3.0, "mae_before": 9.0}), samples=10)
    monitor.finish({"last": {"rmse_before": 3.0, "mae_before": 9.0}})
    row = next(line for line in capsys.readouterr().out.splitlines() if "round's clients, before local" in line)
    assert row.split()[-3:] == ["3.000", "2.000", "1"]


def test_import_leaves_the_heavy_parts_out() -> None:
    code = "import sys, pfl_lightning.monitor; print({'tensorboard', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
