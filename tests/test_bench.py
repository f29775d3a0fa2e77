"""The arithmetic of the benchmark, and that its page has a place for each part."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text

ROOT = Path(__file__).parents[1]


@pytest.fixture
def measure(monkeypatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools/bench"))
    import measure

    yield measure
    sys.modules.pop("measure")


def test_things_take_turns_and_the_first_turn_does_not_count(measure):
    seen: list[str] = []

    def thing(name: str) -> Any:
        return lambda: seen.append(name) or len(seen)

    found = measure.take_turns({"a": thing("a"), "b": thing("b")}, turns=2)
    assert seen == ["a", "b", "a", "b", "a", "b"]
    assert found == {"a": [3, 5], "b": [4, 6]}


def test_a_ratio_is_taken_turn_by_turn(measure):
    """2/1, 30/10, 8/2: the median is 3, though the ratio of the medians is 4."""
    assert measure.ratios([2, 30, 8], [1, 10, 2]).median == 3
    assert measure.Spread.of([1, 2, 3, 4, 5]) == (3, 2, 4)
    assert measure.Spread(3.0, 2.0, 4.0).text(1) == "3.0 (2.0 to 4.0)"
    assert measure.Spread(0.5, 0.5, 0.5).text() == "0.50"


def test_a_table_replaces_the_one_before(measure, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- x: written by tools/bench/x.py -->\nold\n<!-- end of x -->\n\nafter\n")
    monkeypatch.setattr(measure, "PAGE", page)
    for _ in range(2):
        measure.publish("x", measure.markdown([{"net": "CNN", "ratio": 1.0}, {"net": "MLP", "ratio": 22.0}]))
    assert page.read_text() == (
        "before\n\n<!-- x: written by tools/bench/x.py -->\n\n"
        "| net | ratio |\n|-----|-------|\n| CNN | 1.0   |\n| MLP | 22.0  |\n\n<!-- end of x -->\n\nafter\n"
    )


@pytest.mark.parametrize("drawing", ["bars", "lines"])
def test_a_title_fits_into_its_figure(measure, drawing):
    title, spread = "A round on two cores, over a bare loop on two processes", measure.Spread(1, 1, 1)
    if drawing == "bars":
        label = "bare loop, two processes of one thread, channels_last, giving memory back"
        figure = measure.draw_bars(title, [measure.Bar(label, spread)], "seconds")
    else:
        panels = {name: ([1, 10], [spread, spread]) for name in ("seconds", "memory")}
        figure = measure.draw_lines(title, "clients", panels)
    figure.draw_without_rendering()
    (box,) = (text.get_window_extent() for text in figure.findobj(Text) if text.get_text() == title)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_every_part_has_a_place_on_the_page():
    parts = (ROOT / "tools/bench/__main__.py").read_text().split("PARTS = (")[1].split(")")[0]
    page = (ROOT / "docs/performance.md").read_text()
    for part in re.findall(r'"(\w+)"', parts):
        assert (ROOT / f"tools/bench/{part}.py").exists()
        begin, end = (
            page.index(mark)
            for mark in (f"<!-- {part}: written by tools/bench/{part}.py -->", f"<!-- end of {part} -->")
        )
        assert begin < end


def test_figures_have_their_title(measure):
    spread = measure.Spread(2.0, 1.0, 3.0)
    bars = measure.draw_bars("bars", [measure.Bar("one", spread, 1.0)], "seconds")
    lines = measure.draw_lines("lines", "clients", {"seconds": ([10, 100], [spread, spread])})
    assert [figure.get_suptitle() for figure in (bars, lines)] == ["bars", "lines"]
