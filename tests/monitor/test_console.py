"""What is printed: plain lines, the live bar and the closing table, all within 80 columns."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from pfl_lightning.monitor import Metric, RoundRecord
from pfl_lightning.monitor.closing import closing_table, human_bytes, tensorboard_command
from pfl_lightning.monitor.console import ConsoleProgress

NAN = float("nan")
METRICS = {"acc": Metric.named("acc", "higher"), "rmse": Metric.named("rmse", "lower")}


class Clock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(total: int, metric: str = "acc") -> tuple[ConsoleProgress, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    progress = ConsoleProgress(total, METRICS[metric], Console(file=out, width=80, force_terminal=False), clock)
    return progress, out, clock


def record(number: int, **more: float) -> RoundRecord:
    return RoundRecord(number, {"seconds": 0.5, "acc_before": 0.614, "acc_after": 0.098, **more})


def test_plain_lines_come_once_a_second_but_always_for_evaluations_and_the_end() -> None:
    progress, out, clock = plain(12)
    progress.start({})
    out.truncate(out.seek(0))
    for number in range(1, 13):
        clock.now += 0.25
        progress.round(record(number, **({"all_acc_before": 0.7} if number == 7 else {})), 1000)
    progress.stop()
    assert out.getvalue().splitlines() == [
        "[ 1/12] before 61.4 %  after  9.8 %  2,000 samples/s  ETA 0:03",
        "[ 5/12] before 61.4 %  after  9.8 %  2,000 samples/s  ETA 0:02",
        "[ 7/12] before 61.4 %  after  9.8 %  all 70.0 %  2,000 samples/s  ETA 0:01",
        "[11/12] before 61.4 %  after  9.8 %  all 70.0 %  2,000 samples/s  ETA 0:00",
        "[12/12] before 61.4 %  after  9.8 %  all 70.0 %  2,000 samples/s  ETA 0:00",
    ]


def test_header_keeps_long_paths_and_brackets_whole() -> None:
    progress, out, _ = plain(3)
    path = "/scratch/" + "long-name/" * 12 + "[bold]run"
    progress.start({"algorithm": "FedOBP", "run": path})
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["algorithm  FedOBP", f"run        {path}"]
    assert lines[2].startswith("accuracy")
    assert len(lines[2]) <= 80


def test_eta_counts_only_rounds_done_here() -> None:
    progress, out, clock = plain(5000)
    progress.start({})
    clock.now += 4
    progress.round(record(1001), 10)
    assert out.getvalue().splitlines()[-1].endswith("ETA 4h26m")


def test_regression_is_not_called_accuracy() -> None:
    progress, out, clock = plain(400, "rmse")
    progress.start({})
    clock.now += 100
    progress.round(
        RoundRecord(1, {"seconds": 1.0, "rmse_before": 0.5, "rmse_after": 1234.1, "all_rmse_before": 2.0}), 99999
    )
    text = out.getvalue()
    assert "accuracy" not in text
    assert "%" not in text
    assert "[  1/400] before 0.5000  after   1234  all  2.000  99,999 samples/s  ETA" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_training_time_there_is_no_division_by_zero() -> None:
    progress, out, _ = plain(1)
    progress.round(RoundRecord(1, {"seconds": 0.0}), 0)
    assert "0 samples/s" in out.getvalue()


def test_live_bar_fits_and_gives_the_terminal_back() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    progress = ConsoleProgress(400, Metric(), console, Clock())
    progress.start({})
    progress.round(record(7, all_acc_before=0.7), 1_000_000)
    progress.stop()
    progress.stop()
    text = out.getvalue()
    lines = text.replace("\r", "\n").splitlines()
    bar = next(line for line in lines if "round 7/400" in line)
    values = next(line for line in lines if "before" in line and "all 70.0 %" in line)
    assert bar.rstrip().endswith("2,000,000 samples/s  ETA 0:00")
    assert len(bar.split("round")[1]) <= 75
    assert values.startswith("accuracy   before 61.4 %    after  9.8 %")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # cursor hidden, shown again


def show(metrics: dict[str, list[float]], metric: str, **last: float) -> list[str]:
    out = io.StringIO()
    known = {name: [value for value in values if not math.isnan(value)] for name, values in metrics.items()}
    last = {name: values[-1] for name, values in known.items() if values} | last
    Console(file=out, width=80, force_terminal=False).print(closing_table(metrics, last, METRICS[metric]))
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip(" ─-")]


def test_closing_table() -> None:
    lines = show(
        {
            "round": [1, 2, 3],
            "personal_share": [0.5, 0.25, 0.0001],
            "up_bytes": [1024.0, 1024.0 * 1023, 1024.0 * 1024],
            "down_bytes": [1.0, 2.0, 3.0],
            "all_acc_before": [0.7, 0.8, NAN],
            "all_acc_after": [0.9, 0.85, NAN],
            "all_global_acc": [0.4, 0.35, NAN],
            "all_acc_before_worst10": [0.1, 0.2, NAN],
            "all_acc_finetuned": [NAN, 0.8125, NAN],
        },
        "acc",
    )
    assert [" ".join(line.split()) for line in lines] == [
        "accuracy last best in round",
        "personal models, before local training 80.00 % 80.00 % 2",
        "worst tenth of the clients, before 20.00 % 20.00 % 2",
        "personal models, after local training 85.00 % 90.00 % 1",
        "personal models, fine-tuned copies 81.25 % 81.25 % 2",
        "plain global model 35.00 % 40.00 % 1",
        "share of personal parameters 0.01 %",
        "sent up by all clients 2.0 MiB",
        "sent down to all clients 6 B",
    ]
    assert max(map(len, lines)) <= 80


def test_a_sample_of_the_clients_is_named_first_and_last() -> None:
    for header, who in (({}, "every client"), ({"evaluated": "3 of 12 clients"}, "the evaluated clients")):
        progress, out, _ = plain(3)
        progress.start(header)
        assert f"(the round's clients; all: {who})" in out.getvalue()
    lines = show({"round": [1, 2], "all_acc_before": [0.7, NAN], "all_clients": [3, NAN]}, "acc")
    assert [" ".join(line.split()) for line in lines][-1] == "clients that evaluations test 3"


def test_closing_table_shows_a_last_test_that_was_not_finite() -> None:
    metrics = {"round": [1, 2], "all_acc_before": [0.7, NAN], "all_acc_finetuned": [NAN, NAN]}
    lines = show(metrics, "acc", all_acc_before=NAN, all_acc_finetuned=NAN)
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "personal models, before local training nan % 70.00 % 1",
        "personal models, fine-tuned copies nan %",
    ]


def test_closing_table_of_an_error_takes_the_lowest_as_best() -> None:
    lines = show({"round": [1, 2], "all_rmse_before": [0.5, 0.75], "all_global_rmse": [2.0, 1.0]}, "rmse")
    assert [" ".join(line.split()) for line in lines] == [
        "rmse last best in round",
        "personal models, before local training 0.7500 0.5000 1",
        "plain global model 1.000 1.000 2",
    ]


def test_closing_table_without_evaluation_shows_the_participants() -> None:
    lines = show({"round": [1], "acc_before": [0.5], "acc_after": [0.75], "all_acc_before": [NAN]}, "acc")
    assert [line.split()[0:3] for line in lines[1:]] == [["the", "round's", "clients,"]] * 2


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (2**30, "1.0 GiB"), (2**41, "2.0 TiB")],
)
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_tensorboard_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    assert tensorboard_command(Path("runs/fedavg/1")) == "tensorboard --logdir runs/fedavg"
    assert tensorboard_command(Path("one")) == "tensorboard --logdir one"
    assert tensorboard_command(tmp_path / "my runs" / "1") == f"tensorboard --logdir '{tmp_path / 'my runs'}'"
