"""The progress bar: on a terminal only, and after two seconds."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pfl_lightning.data.own import progress


@pytest.mark.parametrize(("terminal", "seconds", "shown"), [(True, 3.0, True), (True, 1.0, False), (False, 3.0, False)])
def test_shown_when_it_takes_long(terminal: bool, seconds: float, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress.progress_bar("Preparing photos", 10, console) as advance:
        for _ in range(10):
            now += seconds / 10
            advance(1)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("Preparing photos" in text) == shown
    assert ("10/10" in text) == shown


def test_nothing_is_written_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("Preparing", 2) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")
