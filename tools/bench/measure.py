"""What all measurements share: interleaving, median and spread, and where the outcome goes.

Other work on a machine disturbs whatever happens to run. So the things that are compared take turns, many times, the
number that counts is the ratio inside one turn, and its median is shown with the range that the middle half lies in.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/performance.md"
PUBLISHED = ROOT / "docs/performance"
TRIED = ROOT / "runs/bench"


class Spread(NamedTuple):
    """The median of repeated measurements and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = np.quantile(np.array(values), [0.25, 0.5, 0.75])
        return cls(float(median), float(low), float(high))

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """`1.04 (1.03 to 1.06)`."""
        median, low, high = (f"{scale * value:.{digits}f}" for value in self)
        return median if low == high else f"{median} ({low} to {high})"


def take_turns(things: Mapping[str, Callable[[], Any]], turns: int, warm_up: int = 1) -> dict[str, list[Any]]:
    """Run the things one after the other, `turns` times; what each returned (its seconds where that is None)."""
    found: dict[str, list[Any]] = {name: [] for name in things}
    for turn in range(warm_up + turns):
        for name, thing in things.items():
            gc.collect()
            begin = time.perf_counter()
            answer = thing()
            seconds = time.perf_counter() - begin
            if turn >= warm_up:
                found[name].append(seconds if answer is None else answer)
    return found


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours to theirs, turn by turn."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


@dataclass
class Bar:
    """A bar of a part's figure."""

    label: str
    value: Spread
    goal: float | None = None
    at_least: bool = False
    """Whether larger is better."""

    @property
    def reached(self) -> bool:
        if self.goal is None:
            return True
        return self.value.median >= self.goal if self.at_least else self.value.median <= self.goal


@dataclass
class Part:
    """A part of the benchmark: its command line, and what comes of it."""

    name: str
    about: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    axis: str = ""
    second_rows: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    """Figures by file name; the bars by default."""
    more: argparse.ArgumentParser = field(default_factory=lambda: argparse.ArgumentParser(add_help=False))

    def options(self) -> argparse.Namespace:
        """Read the command line; torch gets one thread, as on each rank."""
        parser = argparse.ArgumentParser(description=self.about, parents=[self.more])
        parser.add_argument("--quick", action="store_true", help="only to see that it works: small and few")
        parser.add_argument("--turns", type=int, help="how often everything is repeated")
        parser.add_argument("--out", type=Path, help="where files go; with --quick runs/bench, else docs/performance")
        options = parser.parse_args()
        options.out = options.out or (TRIED if options.quick else PUBLISHED)
        torch.set_num_threads(1)
        self.started, self.settings = time.perf_counter(), options
        return options

    def finish(self) -> None:
        """Print the tables, write JSON and figures; those for publication also go into docs/performance.md."""
        out: Path = self.settings.out
        out.mkdir(parents=True, exist_ok=True)
        took = time.perf_counter() - self.started
        command = f"python tools/bench/{self.name}.py" + (" --quick" if self.settings.quick else "")
        lines = [f"`{command}`, {machine()}, {date.today()}, {took:.0f} s in all.", "", *markdown(self.rows)]
        lines += ["", *markdown(self.second_rows)] if self.second_rows else []
        rows = {"rows": self.rows, "second_rows": self.second_rows}
        content: dict[str, Any] = {"command": command, "machine": machine(), "seconds": took, **rows}
        content["bars"] = [asdict(bar) for bar in self.bars]
        (out / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")
        if self.bars:
            self.figures = {self.name: draw_bars(self.about, self.bars, self.axis)} | self.figures
        for name, figure in self.figures.items():
            figure.savefig(out / f"{name}.svg")
        print("\n".join(lines), flush=True)
        if out.resolve() == PUBLISHED:
            shown = [f"![{name}](performance/{name}.svg)" for name in self.figures]
            publish(self.name, [*lines, "", *shown])


def markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows as a table."""
    names = list(rows[0])
    cells = [[str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    table = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (names, *cells)]
    rule = "|".join("-" * (width + 2) for width in widths)
    return [f"| {table[0]} |", f"|{rule}|", *(f"| {row} |" for row in table[1:])]


def publish(name: str, lines: Sequence[str]) -> None:
    """Put the lines between the marks of this part in docs/performance.md."""
    begin, end = f"<!-- {name}: written by tools/bench/{name}.py -->", f"<!-- end of {name} -->"
    page = PAGE.read_text()
    PAGE.write_text("\n".join([page[: page.index(begin)] + begin, "", *lines, "", page[page.index(end) :]]))


def draw_bars(title: str, bars: Sequence[Bar], axis: str) -> Figure:
    """A bar per measurement with its spread, and its goal as a line."""
    figure = Figure(figsize=(7.5, 0.9 + 0.34 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    for row, bar in enumerate(bars):
        axes.barh(row, bar.value.median, 0.62, color="C0" if bar.reached else "C1")
        axes.plot([bar.value.low, bar.value.high], [row, row], color="0.15", linewidth=1.5)
        if bar.goal is not None:
            axes.plot([bar.goal, bar.goal], [row - 0.42, row + 0.42], color="C3", linewidth=1.5)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(axis + (" (line: goal)" if any(bar.goal is not None for bar in bars) else ""))
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)  # beside long labels the axes have no room for it
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_lines(title: str, across: str, panels: Mapping[str, tuple[Sequence[float], Sequence[Spread]]]) -> Figure:
    """A panel per measurement over a common, logarithmic axis."""
    figure = Figure(figsize=(3.2 * len(panels), 2.9), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    for axes, (label, (places, values)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        middle = np.array([value.median for value in values])
        around = np.array([[value.median - value.low, value.high - value.median] for value in values]).T
        axes.errorbar(places, middle, around, marker="o", capsize=2)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.1 * max(value.high for value in values))
        axes.set_xlabel(across)
        axes.set_title(label, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def machine() -> str:
    """What was measured on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return f"{model}, {cores} cores, torch {torch.__version__}, commit {commit.strip() or '?'}"
