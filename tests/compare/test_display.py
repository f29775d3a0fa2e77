"""The estimate, the list of `--dry-run`, and what is shown where."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pfl_lightning.compare import display
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.display import Lines, Live, Quiet, make_display
from pfl_lightning.compare.estimate import Work, duration, paces, remaining
from pfl_lightning.compare.listing import as_text, listing
from pfl_lightning.compare.results import Results
from tests.helpers.comparisons import ToyResolver, experiment, write_run


@pytest.fixture
def stage():
    return Comparison(experiment(), ToyResolver()).stage({})


@pytest.fixture
def cells(stage):
    return list(stage.cells.values())  # FedAvg, FedOBP, Local, FedAvg+FT: 40 epochs in 4 rounds each


def test_the_estimate_uses_a_method_s_own_pace_where_it_is_known(cells):
    pace = paces([(cells[0], 2, 10.0), (cells[1], 4, 60.0)])
    assert pace == {"FedAvg": 0.5, "FedOBP": 1.5, "": pytest.approx(70 / 60)}
    assert remaining([(cells[0], 0), (cells[1], 2)], pace, 1) == pytest.approx(20 + 30)
    assert remaining([(cells[2], 0)], pace, 1) == pytest.approx(40 * 70 / 60)


def test_slots_share_the_work_but_not_a_single_cell(cells):
    pace = {"": 1.0}
    assert remaining([(cell, 0) for cell in cells], pace, 2) == 80
    assert remaining([(cells[0], 0)], pace, 2) == 40
    assert remaining([], {}, 2) == 0
    assert remaining([(cells[0], 0)], {}, 2) is None


def test_durations():
    assert [duration(s) for s in (45, 600, 36000)] == ["45 s", "10 min", "10.0 h"]


def test_a_display_learns_from_cells_that_end(cells):
    shown = Quiet(slots=1)
    shown.expect(cells[:2])
    assert shown.seconds_left is None
    assert "not known" in shown.left_text
    shown.update([Work(cells[0], 2, 0, 10.0)], 1)
    assert shown.seconds_left == pytest.approx(10 + 20)
    shown.ended(cells[0], None)
    shown.update([], 1)
    assert shown.seconds_left == pytest.approx(10)
    assert shown.done == 1


def test_plain_lines(cells, monkeypatch):
    monkeypatch.setattr(display, "LINE_SECONDS", -1.0)
    out = io.StringIO()
    shown = Lines(Console(file=out), 2)
    shown.expect(cells)
    shown.update([Work(cells[0], 3, 0, 30.0)], 3)
    shown.ended(cells[0], None)
    shown.ended(cells[1], "exit code 1: [red]odd[/red]")
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("[0/4] FedAvg, seed 0: round 3 of 4; about")
    assert lines[1].startswith("[1/4] FedAvg, seed 0: finished; about")
    assert lines[2].startswith("[2/4] FedOBP, seed 0: failed: exit code 1: [red]odd[/red];")
    assert "\x1b" not in out.getvalue()


def test_a_terminal_has_bars_and_no_colour_where_none_is_wanted(cells, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    shown = make_display(console, False, 1, [], {"TERM": "xterm"})
    assert isinstance(shown, Live)
    shown.expect(cells[:1])
    shown.update([Work(cells[0], 3, 0, 30.0)], 0)
    shown.ended(cells[0], "exit code 1")
    shown.close()
    assert "FedAvg, seed 0: failed: exit code 1" in out.getvalue()
    assert "\x1b[3" not in out.getvalue()  # colours start so


def test_the_display_fits_its_place():
    pipe = Console(file=io.StringIO())
    assert type(make_display(pipe, False, 1, [], {})) is Lines
    assert type(make_display(pipe, True, 1, [], {})) is Quiet
    assert type(make_display(Console(file=io.StringIO(), force_terminal=True), False, 1, [], {"TERM": "dumb"})) is Lines


def test_the_list_shows_states_and_cost(tmp_path, stage, cells):
    write_run(tmp_path / "a", cells[0])
    write_run(tmp_path / "b", cells[1], rounds=2)
    results = Results(tmp_path)
    results.refresh(cells)
    timed = [(cells[0], 4, 80.0)]
    rows = listing(stage, results, {cells[2].id: "7_0"}, timed)
    assert [row["state"] for row in rows] == ["finished", "unfinished", "queued", "missing"]
    assert [row["rounds_done"] for row in rows] == [4, 2, 0, 0]
    assert [row["seconds_left"] for row in rows] == [0, 40, 80, 80]
    assert [row["visits"] for row in rows] == [8] * 4
    text = as_text(rows, 2, searching=True)
    assert "4 cells, 1 finished; the rest: about 2 min with 2 at a time" in text
    assert "trials of a search" in text


def test_without_a_timed_run_the_list_says_so(stage, tmp_path):
    text = as_text(listing(stage, Results(tmp_path), {}, []), 2, searching=False)
    assert "4 cells, 0 finished; the rest: time unknown until the first rounds have run" in text
