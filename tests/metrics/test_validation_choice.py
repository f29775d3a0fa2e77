"""The results at the round that validation chose."""

from __future__ import annotations

import math

import numpy as np

from pfl_lightning.metrics.keys import MetricKey
from pfl_lightning.metrics.validation_choice import ValidationChoice

NAMES = {key: key.column for key in (MetricKey("acc", "before", "all"), MetricKey("acc", "validation", "all"))}


def entered(*evaluations: tuple[list[float], list[float]]) -> ValidationChoice:
    """Evaluations as (value of each client on validation samples, on test samples)."""
    choice = ValidationChoice("acc", "higher", len(evaluations[0][0]))
    for round_, (validation, test) in enumerate(evaluations, start=1):
        values = {"validation": {"acc": np.array(validation)}, "before": {"acc": np.array(test)}}
        columns = dict(zip(NAMES, (float(np.mean(test)), float(np.mean(validation))), strict=True))
        choice.enter(round_, columns, NAMES, values)
    return choice


def test_validation_chooses_a_round_for_all_and_one_for_each_client():
    """Means on validation samples: 0.5 and 0.4, so round 1 for all. Client 1 prefers round 2: (0.1 + 0.9) / 2."""
    choice = entered(([0.9, 0.1], [0.1, 0.3]), ([0.1, 0.7], [0.8, 0.9]))
    summary = choice.summary(np.array([True, True]))
    assert summary == {"round": 1, "all_acc_before": 0.2, "all_acc_validation": 0.5, "acc_before_per_client": 0.5}


def test_a_client_that_was_never_finite_spoils_the_mean():
    choice = entered(([0.9, 0.5], [0.1, 0.3]))
    choice.client_value[1] = math.nan
    assert math.isnan(choice.summary(np.array([True, True]))["acc_before_per_client"])
    assert choice.summary(np.array([True, False]))["acc_before_per_client"] == 0.1
