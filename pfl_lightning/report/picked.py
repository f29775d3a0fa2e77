"""Which of many runs are drawn in colour, and the names of their lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pfl_lightning.report.groups import Group, Reported

MOST_COLOURED = 8
"""Lines that readers can tell apart."""
CONTROLS = ("Local", "FedAvg", "FedAvg+FT")
GREY: dict[str, Any] = {"color": "0.82", "linewidth": 1.0, "zorder": 1}
"""The look of all other lines."""


def in_colour(groups: Sequence[Group], shown: Reported) -> Iterator[tuple[Group, int | None]]:
    """All groups with the index of their colour, None for grey: of many, the controls and the best have colours."""
    chosen = {id(group) for group in picked(groups, shown)}
    indices = iter(range(len(groups)))
    grey = [group for group in groups if id(group) not in chosen]
    yield from ((group, None) for group in grey)
    yield from ((group, next(indices)) for group in groups if id(group) in chosen)


def picked(groups: Sequence[Group], shown: Reported) -> list[Group]:
    """The groups that have colours."""
    if len(groups) <= MOST_COLOURED:
        return list(groups)
    sign = 1 if shown.metric.higher_is_better else -1
    last = {group.label: -sign * last_value(group, shown) for group in groups}
    best = sorted(groups, key=lambda group: (math.isnan(last[group.label]), last[group.label]))
    controls = [group for group in groups if group.label in CONTROLS]
    return [*controls, *(group for group in best if group not in controls)][:MOST_COLOURED]


def last_value(group: Group, shown: Reported) -> float:
    """The mean over seeds of the last value."""
    return float(np.mean([shown.series(run)[1][-1] for run in group.runs]))


def line_label(group: Group, shown: Reported) -> str:
    """The group's label, with its column where the page has another one."""
    column = shown.column_of(group.first)
    return group.label if column == shown.column else f"{group.label} ({column})"
