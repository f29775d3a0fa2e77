"""All figures for which some runs have data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import matplotlib
import torch

from pfl_lightning.report import curves, per_client, phases
from pfl_lightning.report.drawn import Drawn, Wishes
from pfl_lightning.report.groups import Group, Reported
from pfl_lightning.report.partition import draw_partition
from pfl_lightning.report.picked import MOST_COLOURED
from pfl_lightning.report.run_figures import figures_of_run
from pfl_lightning.report.style import SETTINGS
from pfl_lightning.report.sweep import draw_sweep, find_sweep

MOST_SINGLE = 6
"""Groups whose own figures are drawn. More would make a page that nobody reads."""


def draw_all(
    groups: Sequence[Group], shown: Reported, wishes: Wishes, tell: Callable[[str], None] = lambda text: None
) -> Iterator[Drawn]:
    """Draw every figure that there is data for. `tell` hears which one comes next."""
    with matplotlib.rc_context(SETTINGS):
        tell("drawing the curves")
        yield from _of_all(groups, shown)
        for group in groups[:MOST_SINGLE]:
            tell(f"drawing the figures of {group.label}")
            several = len(groups) > 1
            suffix = "-" + re.sub(r"[^\w.=-]+", "-", group.label).strip("-") if several else ""
            for drawn in figures_of_run(group.first, shown, wishes):
                title = f"{drawn.title}: {group.label}" if several else drawn.title
                yield drawn._replace(name=drawn.name + suffix, title=title)


def _of_all(groups: Sequence[Group], shown: Reported) -> Iterator[Drawn]:
    seeds = max(len(group.runs) for group in groups)
    band = " The line is the mean over seeds, the band one standard deviation." if seeds > 1 else ""
    about = f"{shown.metric.label.capitalize()} ({shown.column})"
    if len(groups) > MOST_COLOURED:
        band += " The controls and the best methods have colours, the others are grey."
    yield Drawn("convergence", "Convergence", f"{about} over the rounds.{band}", curves.draw_convergence(groups, shown))
    if (sweep := find_sweep(groups)) is not None:
        text = f"{about} after the last round against {sweep.key}, with one standard deviation over seeds."
        yield Drawn("sweep", f"Influence of {sweep.key}", text, draw_sweep(sweep, shown))
    if (figure := per_client.draw_clients(groups, shown)) is not None:
        text = f"{about} of every client that the last evaluation tested, smallest seed. Each line is sorted by itself."
        yield Drawn("clients", "Results of single clients", text, figure)
    if (figure := per_client.draw_gains(groups, shown)) is not None:
        text = (
            "Gain of every client over training alone (Local) with the same data, net, round and seed, all seeds "
            "together. Below zero it did worse."
        )
        yield Drawn("gains", "Gain over training alone", text, figure)
    if (figure := curves.draw_traffic(groups, shown)) is not None:
        text = f"{about} against the bytes that all clients have sent and received so far.{band}"
        yield Drawn("traffic", "Bytes against result", text, figure)
    if (figure := phases.draw_phases(groups)) is not None:
        text = "Seconds of each phase of the rounds, mean over ranks and seeds, since the run was started or resumed."
        yield Drawn("phases", "Time per phase", text, figure)
    drawn_facts: list[dict[str, list[str]]] = []
    for group in groups[:MOST_SINGLE]:
        if group.first.class_names and group.first.facts not in drawn_facts:
            drawn_facts.append(group.first.facts)
            figure = draw_partition(torch.from_numpy(group.first.label_counts), group.first.class_names)
            name = "labels" if len(drawn_facts) == 1 else f"labels-{len(drawn_facts)}"
            yield Drawn(name, "Label distribution", f"Training samples of each client ({group.label}).", figure)
