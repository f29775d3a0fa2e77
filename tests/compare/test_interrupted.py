"""A comparison that is interrupted at random moments ends with the same files, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.conclusion import conclude
from pfl_lightning.compare.display import Quiet
from pfl_lightning.compare.runner import Stopped
from pfl_lightning.compare.session import Session
from pfl_lightning.foundation.signals import StopSignals
from tests.helpers.comparisons import ToyResolver, experiment
from tests.helpers.fake_fit import FakeFit

SEARCH = {"space": {"FedOBP": {"algorithm.quantile": [0.5, 0.7, 0.9, 0.99]}}, "engine": "random", "budget": 3}
EXPERIMENTS = {
    "plain": {"grid": {"data.alpha": [0.1, 0.5]}, "seeds": [0, 1]},
    "search": {"search": SEARCH, "set": {"data.validation_share": 0.2}, "seeds": [0, 1]},
}


class Crash(BaseException):
    """The whole program is gone: nobody ends the children."""


class Moment(StopSignals):
    """A request to stop that comes after a number of polls."""

    def __init__(self, polls: int, how: str = "stop") -> None:
        super().__init__()
        self.polls, self.how = polls, how
        self.children: list[FakeFit] = []

    def wait(self, seconds: float, more_than: int = 0) -> bool:
        self.polls -= 1
        if self.polls:
            return False
        if self.how == "crash":
            for child in self.children:
                child.crash()
            raise Crash
        if self.how == "second Ctrl-C":
            raise KeyboardInterrupt
        return True


def run(folder: Path, content: dict, stop: Moment) -> dict[str, bytes]:
    """The tables of a comparison; raises what interrupts it."""
    session = Session(Comparison(experiment(**content), ToyResolver()), folder)

    def start(cell, run_dir, slot):
        stop.children.append(FakeFit(cell, run_dir))
        return stop.children[-1]

    stage = session.run(start, 2, stop, Quiet())
    conclusion = conclude(session, stage)
    assert not conclusion.problems
    return {path.name: path.read_bytes() for path in conclusion.files}


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_tables_are_the_same(tmp_path, name, seed):
    content = EXPERIMENTS[name]
    expected = run(tmp_path / "undisturbed", content, Moment(-1))
    assert set(expected) == {"table.md", "table.csv", "table.tex"}
    rng = random.Random(seed)
    interruptions = 0
    while True:
        stop = Moment(rng.randint(1, 12), rng.choice(["stop", "crash", "second Ctrl-C"]))
        try:
            found = run(tmp_path / "disturbed", content, stop)
            break
        except (Stopped, Crash, KeyboardInterrupt):
            interruptions += 1
    assert interruptions > 3
    assert found == expected


def test_finished_cells_are_not_run_again(tmp_path):
    content = EXPERIMENTS["plain"]
    run(tmp_path, content, Moment(-1))
    again = Moment(-1)
    run(tmp_path, content, again)
    assert again.children == []


def test_only_what_is_new_is_run(tmp_path):
    run(tmp_path, {"seeds": [0]}, Moment(-1))
    more = Moment(-1)
    run(tmp_path, {"seeds": [0, 1], "methods": ["FedAvg", "FedOBP", "Ditto"], "controls": ["Local", "FedAvg+FT"]}, more)
    labels = {child.cell.label for child in more.children}
    assert labels == {
        "FedAvg, seed 1",
        "FedOBP, seed 1",
        "Local, seed 1",
        "FedAvg+FT, seed 1",
        "Ditto, seed 0",
        "Ditto, seed 1",
    }


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    content = {"methods": ["FedAvg"], "controls": []}
    stop = Moment(4)
    with pytest.raises(Stopped):
        run(tmp_path, content, stop)
    assert stop.children[0].interrupted
    before = stop.children[0].rounds
    assert before > 0
    more = Moment(-1)
    started = []

    def note(cell, run_dir, slot):
        child = FakeFit(cell, run_dir)
        started.append(child.rounds)
        return child

    session = Session(Comparison(experiment(**content), ToyResolver()), tmp_path)
    session.run(note, 1, more, Quiet())
    assert started == [before]
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_table_is_never_replaced_by_an_empty_one(tmp_path):
    session = Session(Comparison(experiment(), ToyResolver()), tmp_path)
    (tmp_path / "table.md").write_text("published")
    conclusion = conclude(session, session.refresh())
    assert conclusion.files == []
    assert conclusion.problems == ["4 of 4 cells are missing"]
    assert (tmp_path / "table.md").read_text() == "published"


def test_an_incomplete_table_does_not_reach_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- pfl-compare toy: begin -->\npublished\n<!-- pfl-compare toy: end -->\n")
    session = Session(Comparison(experiment(), ToyResolver()), tmp_path)

    def start(cell, run_dir, slot):
        return FakeFit(cell, run_dir, fails=1 if cell.method == "FedOBP" else 0)

    stage = session.run(start, 2, Moment(-1), Quiet())
    conclusion = conclude(session, stage, page)
    assert "published" in page.read_text()
    assert conclusion.problems == [
        "FedOBP, seed 0: exit code 1: it cannot go on",
        f"{page} is unchanged, because cells are missing",
    ]
    assert "| FedOBP | before | — |" in conclusion.files[0].read_text()
