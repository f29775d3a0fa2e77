from __future__ import annotations

import math

import numpy as np
import pytest

from pfl_lightning.metrics import Best, per_client, summarize
from pfl_lightning.tasks import Classification

TASK = Classification()


def table(*rows: tuple[float, float]) -> np.ndarray:
    """Rows of (correct, count); the loss is 0.5 a sample."""
    return np.array([[correct, 0.5 * count, count] for correct, count in rows])


def test_client_mean_and_pooled_by_hand():
    """Accuracies 1/2 and 9/10: mean 0.7; pooled 10/12."""
    columns = summarize(TASK, table((1, 2), (9, 10)), "before")
    assert columns["acc_before"] == pytest.approx(0.7)
    assert columns["acc_before_pooled"] == pytest.approx(10 / 12)
    assert columns["acc_before_worst10"] == pytest.approx(0.5)
    assert columns["loss_before"] == pytest.approx(0.5)


def test_the_worst_tenth_is_rounded_up():
    """Of 11 clients with accuracies 0, 0.1, …, 1 the worst two count: 0.05."""
    columns = summarize(TASK, table(*((k, 10) for k in range(11))), "after")
    assert columns["acc_after_worst10"] == pytest.approx(0.05)


def test_the_worst_loss_is_the_highest():
    rows = np.array([[1, 1.0, 1], [1, 5.0, 1], [1, 2.0, 1]])
    assert summarize(TASK, rows, "x")["loss_x_worst10"] == 5.0


def test_clients_that_were_not_tested_do_not_count():
    rows = np.vstack([table((1, 2)), np.full((1, 3), np.nan), np.zeros((1, 3))])
    columns = summarize(TASK, rows, "before")
    assert columns["acc_before"] == columns["acc_before_pooled"] == 0.5
    assert np.isnan(per_client(TASK, rows)["acc"][1:]).all()


def test_nobody_tested_is_nan_not_an_error():
    assert math.isnan(summarize(TASK, np.full((2, 3), np.nan), "after")["acc_after"])


def test_last_best_and_best_per_client_by_hand():
    """Client 0: 0.2, 0.8; client 1: 0.6, absent, then 0.1 → own bests 0.8 and 0.6, mean 0.7. Loss: lower is better."""
    best = Best(TASK)
    best.enter_clients("after", table((2, 10), (6, 10)), 2)
    best.enter_clients("after", np.vstack([table((8, 10)), np.full((1, 3), np.nan)]), 2)
    best.enter_clients("after", table((1, 10)), 2, [1])
    best.enter_columns({"acc_after": 0.4, "loss_after": 0.3, "train_loss": 9.0, "seconds": 1.0, "all_global_acc": 0.1})
    best.enter_columns({"acc_after": 0.3, "loss_after": 0.2, "all_global_acc": math.nan})
    summary = best.summary()
    assert summary["best_per_client"]["acc_after"] == pytest.approx(0.7)
    assert summary["last"] == {"acc_after": 0.3, "loss_after": 0.2, "all_global_acc": 0.1}
    assert summary["best"] == {"acc_after": 0.4, "loss_after": 0.2, "all_global_acc": 0.1}
