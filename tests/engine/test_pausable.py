"""Functions that halt in the middle."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext

import pytest

from pfl_lightning.engine.pausable import PausableCall


def test_functions_take_turns_and_get_their_answers():
    said: list[str] = []
    turns: list[PausableCall[int, int]] = []

    def work(name: str, questions: int) -> None:
        said.append(f"{name} starts")
        for number in range(questions):
            said.append(f"{name} hears {turns['ab'.index(name)].ask(number)}")

    turns += [PausableCall(lambda: work("a", 2), nullcontext), PausableCall(lambda: work("b", 1), nullcontext)]
    for round_ in range(3):
        for turn in turns:
            if not turn.over:
                turn.proceed(10 * round_ + (turn.question or 0))
    assert said == ["a starts", "b starts", "a hears 10", "b hears 10", "a hears 21"]
    assert all(turn.over and turn.error is None for turn in turns)


def test_an_error_is_kept_and_what_was_open_is_closed():
    before = threading.active_count()
    closed: list[str] = []

    def fail() -> None:
        raise KeyError("mine")

    def wait(turn: list[PausableCall[str, None]]) -> None:
        try:
            turn[0].ask("for ever?")
        finally:
            closed.append("closed")

    waiting: list[PausableCall[str, None]] = []
    waiting.append(PausableCall(lambda: wait(waiting), nullcontext))
    failing, unborn = PausableCall[str, None](fail, nullcontext), PausableCall[str, None](fail, nullcontext)
    waiting[0].proceed()
    failing.proceed()
    assert isinstance(failing.error, KeyError)
    assert waiting[0].question == "for ever?"
    for turn in (*waiting, failing, unborn):
        turn.end()
    assert closed == ["closed"]
    assert waiting[0].over
    assert waiting[0].error is None
    assert threading.active_count() == before


def test_the_context_is_entered_around_each_stretch():
    events: list[str] = []

    @contextmanager
    def context():
        events.append("in")
        yield
        events.append("out")

    turn = PausableCall[int, int](lambda: events.append(str(turn.ask(1))), context)
    turn.proceed()
    events.append("between")
    turn.proceed(7)
    assert events == ["in", "out", "between", "in", "7", "out"]


def test_an_owner_that_is_interrupted_can_still_end_it(monkeypatch):
    """Ctrl-C while the owner waits: the function is running, and is brought to its end at its next question."""
    turn: PausableCall[str, None] = PausableCall(lambda: turn.ask("?"), nullcontext)
    wait = turn._await

    def interrupted() -> None:
        monkeypatch.setattr(turn, "_await", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(turn, "_await", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turn.proceed()
    turn.end()
    assert turn.over
    assert turn.error is None
