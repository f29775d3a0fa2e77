"""TensorBoard files after a resume: each round once and in order, whatever the clock says and whatever was damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.monitor import Metric, RoundRecord
from pfl_lightning.monitor.event_files import PATTERN, restore_events
from pfl_lightning.monitor.snapshot import EventFile
from pfl_lightning.monitor.tensorboard import TensorBoardWriter

METRICS = [Metric.named("acc", "higher")]
Saved = dict[int, list[EventFile]]


def process(
    run_dir: Path, rounds: range, clock: int, monkeypatch: pytest.MonkeyPatch, earlier: list[EventFile] | None = None
) -> Saved:
    """One process of a run: it writes some rounds at a time of its clock. Returns the files after each round."""
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time", lambda: float(clock))
    resumed_at = None if earlier is None else rounds.start - 1
    writer = TensorBoardWriter(run_dir, METRICS, resumed_at, earlier or [])
    saved: Saved = {}
    for number in rounds:
        writer.round(RoundRecord(number, {"acc_before": number / 8}), samples=1)
        writer.flush()
        saved[number] = writer.files()
    writer.close()
    return saved


def steps(run_dir: Path) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in EventAccumulator(str(run_dir)).Reload().Scalars("accuracy/before")]


def rows(last: int) -> list[tuple[int, dict[str, float]]]:
    return [(number, {"accuracy/before": number / 8}) for number in range(1, last + 1)]


def expected(last: int) -> list[tuple[int, float]]:
    return [(number, number / 8) for number in range(1, last + 1)]


@pytest.mark.parametrize("clocks", [(100, 200, 300), (300, 200, 100), (200, 100, 300)])
def test_steps_are_in_order_whatever_the_clock_says(clocks, tmp_path, monkeypatch):
    """Three processes. The first two are killed one round after their last checkpoint."""
    clocks = [1_700_000_000 + clock for clock in clocks]
    first = process(tmp_path, range(1, 5), clocks[0], monkeypatch)
    earlier, damaged = restore_events(tmp_path, first[3], rows(3))
    assert not damaged
    second = process(tmp_path, range(4, 7), clocks[1], monkeypatch, earlier)
    earlier, damaged = restore_events(tmp_path, second[5], rows(5))
    assert not damaged
    process(tmp_path, range(6, 9), clocks[2], monkeypatch, earlier)
    assert steps(tmp_path) == expected(8)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_process_that_never_saved_leaves_no_trace(tmp_path, monkeypatch):
    first = process(tmp_path, range(1, 4), 1_700_000_000, monkeypatch)
    earlier, _ = restore_events(tmp_path, first[3], rows(3))
    process(tmp_path, range(4, 6), 1_700_000_100, monkeypatch, earlier)
    earlier, damaged = restore_events(tmp_path, first[3], rows(3))
    assert not damaged
    assert steps(tmp_path) == expected(3)


def test_beginning_again_removes_our_files_only(tmp_path, monkeypatch):
    process(tmp_path, range(1, 4), 1_700_000_000, monkeypatch)
    (tmp_path / "events.out.tfevents.1700000000.mine").write_bytes(b"of another writer")
    assert restore_events(tmp_path, [], []) == ([], [])
    assert [path.name for path in tmp_path.iterdir()] == ["events.out.tfevents.1700000000.mine"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_file_is_written_again_from_the_rows(damage, number, tmp_path, monkeypatch):
    first = process(tmp_path, range(1, 4), 1_700_000_000, monkeypatch)
    earlier, _ = restore_events(tmp_path, first[3], rows(3))
    second = process(tmp_path, range(4, 6), 1_700_000_100, monkeypatch, earlier)
    path = sorted(tmp_path.glob(PATTERN))[number]
    content = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(content[:100] + (b"" if damage == "truncate" else bytes([content[100] ^ 1]) + content[101:]))
    earlier, damaged = restore_events(tmp_path, second[5], rows(5))
    assert damaged == [f"events.out.tfevents.{number:010d}.pfl"]
    process(tmp_path, range(6, 8), 1_600_000_000, monkeypatch, earlier)
    assert steps(tmp_path) == expected(7)
    kept = [path.name for path in tmp_path.iterdir() if "tfevents" not in path.name]
    assert kept == ([] if damage == "delete" else ["damaged_events_0"]), "the histograms in it may be of use"
    assert restore_events(tmp_path, earlier, rows(5))[1] == [], "from now on it is a good file"


def test_a_kill_at_any_moment_of_the_restoration_does_no_harm(tmp_path, monkeypatch):
    first = process(tmp_path, range(1, 5), 1_700_000_000, monkeypatch)
    earlier, _ = restore_events(tmp_path, first[3], rows(3))
    second = process(tmp_path, range(4, 7), 1_600_000_000, monkeypatch, earlier)
    process(tmp_path, range(6, 7), 1_650_000_000, monkeypatch, second[5])
    rename, count = Path.rename, 0

    def killed(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        restore_events(tmp_path, second[5], rows(5))
    earlier, damaged = restore_events(tmp_path, second[5], rows(5))
    assert not damaged
    process(tmp_path, range(6, 8), 1_500_000_000, monkeypatch, earlier)
    assert steps(tmp_path) == expected(7)
