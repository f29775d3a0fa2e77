"""A progress bar for work on data that takes longer than two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE_SECONDS = 2.0


@contextmanager
def progress_bar(what: str, total: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function that counts finished pieces. The bar appears on standard error, and on a terminal only.

    Args:
        what: text beside the bar.
        total: number of pieces.
        console: where the bar is shown. Standard error by default.
    """
    console = console or Console(stderr=True)
    start, done = time.monotonic(), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=total)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if console.is_terminal and time.monotonic() - start >= PATIENCE_SECONDS:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        if bar.live.is_started:  # otherwise it would print an empty line
            bar.stop()
