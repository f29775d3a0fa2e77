"""Results do not change by accident: short runs of every method reproduce their recorded hashes and metrics.

After a change that alters results on purpose: `python tools/record_results.py NAME …`, and say so in CHANGELOG.md.
"""

from __future__ import annotations

import pytest

from tests.helpers import recorded

TOLERANCE = 0.03
"""Allowed difference of an accuracy on another processor or with another torch, where rounding differs."""


@pytest.mark.parametrize("name", recorded.names())
def test_a_short_run_gives_the_recorded_result(name: str) -> None:
    expected, result = recorded.load(), recorded.run(name)
    hashes = expected["hashes"].get(recorded.this_platform())
    if hashes is not None:
        assert {key: result[key] for key in recorded.HASHES} == hashes[name]
    metrics = expected["metrics"][name]
    assert metrics.keys() == result["metrics"].keys()
    for column, value in metrics.items():
        near = pytest.approx(value, abs=TOLERANCE) if "acc" in column else pytest.approx(value, rel=0.1, abs=0.1)
        assert result["metrics"][column] == near, column
