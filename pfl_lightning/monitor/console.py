"""Progress of a run: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from pfl_lightning.metrics.record import Metric, RoundRecord

_LINE_SECONDS = 1.0
EVALUATED = "evaluated"
"""The line of the header that says which clients evaluations test. Without it they test all."""


class ConsoleProgress:
    """Says how far the run is and how well it does.

    Args:
        total_rounds: Rounds of the whole run.
        metric: The task's metric.
        console: Where to print. A terminal gets the live bar.
        clock: Seconds that only grow, for the ETA and for the pace of plain lines.
    """

    def __init__(
        self, total_rounds: int, metric: Metric, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total_rounds
        self._metric = metric
        self._console = console
        self._clock = clock
        self._started = clock()
        self._last_line = -float("inf")
        self._first_round: int | None = None
        self._all: dict[str, float] = {}
        self._live: Live | None = None
        self._bar = Progress(
            TextColumn("round {task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[pace]}"),
            console=console,
            expand=True,
        )

    def start(self, header: Mapping[str, str]) -> None:
        """Print a few facts about the run and show the bar."""
        width = max(map(len, header), default=0)
        for name, value in header.items():
            say(self._console, f"{name:<{width}}  {value}")
        everyone = "the evaluated clients" if EVALUATED in header else "every client"
        meaning = f"(the round's clients; all: {everyone})"
        say(self._console, f"{self._metric.label} before/after local training {meaning}")
        self._started = self._clock()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar.add_task("", total=self._total, pace="")
            self._live = Live(Group(self._bar, Text("first round ...")), console=self._console, refresh_per_second=4)
            self._live.start()

    def round(self, record: RoundRecord, samples: int) -> None:
        """Show one round. Between evaluations plain lines come about once a second."""
        self._first_round = self._first_round or record.round
        self._all |= {name: value for name, value in record.scalars.items() if name.startswith("all_")}
        seconds = record.scalars.get("seconds", 0.0)
        pace = f"{samples / seconds if seconds else 0:,.0f} samples/s  ETA {self._eta(record.round)}"
        if self._live is not None:
            self._bar.update(self._bar.task_ids[0], completed=record.round, pace=pace)
            values = f"{self._metric.label}   {self._values(record, '    ')}"
            self._live.update(Group(self._bar, Text(values, overflow="ellipsis", no_wrap=True)))
            return
        now = self._clock()
        if record.is_evaluation or record.round == self._total or now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            place = f"[{record.round:>{len(str(self._total))}}/{self._total}]"
            say(self._console, f"{place} {self._values(record, '  ')}  {pace}")

    def stop(self) -> None:
        """Leave the bar as it is and give the terminal back. Stopping twice is fine."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _values(self, record: RoundRecord, gap: str) -> str:
        name = self._metric.name
        shown = {
            "before": record.scalars.get(f"{name}_before"),
            "after": record.scalars.get(f"{name}_after"),
            "all": self._all.get(f"all_{name}_before"),
        }
        return gap.join(f"{label} {self._metric.text(value):>6}" for label, value in shown.items() if value is not None)

    def _eta(self, done: int) -> str:
        rounds = done - (self._first_round or done) + 1
        left = round((self._clock() - self._started) / rounds * (self._total - done))
        hours, minutes = left // 3600, left // 60 % 60
        return f"{hours}h{minutes:02}m" if hours else f"{minutes}:{left % 60:02}"


def say(console: Console, line: str) -> None:
    """Print a line as it is: no markup, no colours guessed, paths not broken at the edge."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
