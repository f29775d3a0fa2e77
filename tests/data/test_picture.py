"""The picture of a partition shows the counts it was given."""

from __future__ import annotations

import sys
from io import BytesIO

import numpy as np
import pytest
import torch

from pfl_lightning.report.partition import draw_partition


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (100, 10), (100, 100), (1000, 15), (2500, 3)])
def test_heights_are_the_counts(clients: int, classes: int) -> None:
    counts = torch.randint(0, 50, (clients, classes), generator=torch.Generator().manual_seed(0)) + 1
    figure = draw_partition(counts)
    axes = figure.axes[0]
    layers = [shape for shape in axes.collections if shape.get_label() and not shape.get_label().startswith("_")]
    assert len(layers) == classes
    tops = max(path.vertices[:, 1].max() for shape in layers for path in shape.get_paths())
    group = -(-clients // 1000)
    if group == 1:
        assert tops == counts.sum(1).max()
    areas = [_area(shape.get_paths()[0].vertices) for shape in layers]
    np.testing.assert_allclose(sum(areas), counts.sum(), rtol=0.02)
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")


def _area(corners: np.ndarray) -> float:
    x, y = corners[:, 0], corners[:, 1]
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


def test_draws_without_pyplot() -> None:
    before = "matplotlib.pyplot" in sys.modules
    draw_partition(torch.ones(3, 2, dtype=torch.int64))
    assert ("matplotlib.pyplot" in sys.modules) == before
