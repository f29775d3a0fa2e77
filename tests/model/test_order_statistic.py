from __future__ import annotations

import pytest
import torch

from pfl_lightning.model.order_statistic import SAMPLE, largest_value


@pytest.mark.parametrize("k", [1, 2, 77, 100, 101, 10_000, 19_999, 20_000])
@pytest.mark.parametrize("kind", ["random", "ties", "zeros", "sorted", "equal", "sample too small", "sample too large"])
def test_the_threshold_is_exact_whatever_the_sample_shows(k: int, kind: str) -> None:
    scores = torch.randn(20_000, generator=torch.Generator().manual_seed(k))
    if kind == "ties":
        scores = scores.round()
    elif kind == "zeros":  # half of the parameters never moved
        scores = scores.relu()
    elif kind == "sorted":
        scores = scores.sort().values
    elif kind == "equal":
        scores.fill_(3.0)
    elif kind.startswith("sample"):
        scores[:: 20_000 // SAMPLE] = -100.0 if kind.endswith("small") else 100.0
    assert largest_value(scores, k) == scores.sort(descending=True).values[k - 1]
