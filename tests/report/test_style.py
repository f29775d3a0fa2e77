"""Axes whose numbers can be read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib

from pfl_lightning.report.groups import Group
from pfl_lightning.report.phases import draw_phases
from pfl_lightning.report.run_data import RunData
from pfl_lightning.report.style import SETTINGS, new_figure, whole_rounds


def test_a_single_round_has_whole_numbers_around_it() -> None:
    figure, axes = new_figure()
    axes.plot([2], [0.5], marker="o")
    whole_rounds(axes)
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert 2 in shown
    assert all(tick == round(tick) for tick in shown)


def test_numbers_of_short_phases_do_not_run_into_each_other() -> None:
    run = RunData(Path("run"), {}, {}, summary={"phase_seconds": [{"fit": 0.0123, "test": 0.0089}]})
    with matplotlib.rc_context(SETTINGS):
        figure = draw_phases([Group("Learn2pFed", (run,), {})])
        assert figure is not None
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 2
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
