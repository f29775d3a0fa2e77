"""Progress bars on the error stream. They show on a terminal only and disappear at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, track

T = TypeVar("T")


def step_bar(items: Iterable[T], description: str, total: int) -> Iterable[T]:
    """Iterate over `items` and count them in a progress bar."""
    console = Console(stderr=True)
    return track(items, description, total=total, console=console, transient=True, disable=not console.is_terminal)


def bytes_bar() -> Progress:
    """Return a progress bar for a download."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
