"""Sums become metrics: means over clients, pooled values, the worst tenth, the best so far."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfl_lightning.metrics.keys import MetricKey, Moment
from pfl_lightning.metrics.summaries import Best, by_column, per_client, summarize
from pfl_lightning.tasks import Classification

TASK = Classification()


def table(*rows: tuple[float, float]) -> np.ndarray:
    """Rows of (correct, count); the loss is 0.5 a sample."""
    return np.array([[correct, 0.5 * count, count] for correct, count in rows])


def columns_of(rows: np.ndarray, moment: Moment) -> dict[str, float]:
    return by_column(summarize(TASK, rows, np.ones(len(rows), dtype=bool), moment)[1])


def test_client_mean_and_pooled_by_hand():
    """Accuracies 1/2 and 9/10: mean 0.7; pooled 10/12."""
    columns = columns_of(table((1, 2), (9, 10)), "before")
    assert columns["acc_before"] == pytest.approx(0.7)
    assert columns["acc_before_pooled"] == pytest.approx(10 / 12)
    assert columns["acc_before_worst10"] == pytest.approx(0.5)
    assert columns["loss_before"] == pytest.approx(0.5)


def test_the_worst_tenth_is_rounded_up():
    """Of 11 clients with accuracies 0, 0.1, …, 1 the worst two count: 0.05."""
    columns = columns_of(table(*((k, 10) for k in range(11))), "after")
    assert columns["acc_after_worst10"] == pytest.approx(0.05)


def test_the_worst_loss_is_the_highest():
    rows = np.array([[1, 1.0, 1], [1, 5.0, 1], [1, 2.0, 1]])
    assert columns_of(rows, "finetuned")["loss_finetuned_worst10"] == 5.0


def test_clients_that_were_not_tested_do_not_count():
    rows = np.vstack([table((1, 2)), np.full((1, 3), np.nan), np.zeros((1, 3))])
    values, columns = summarize(TASK, rows, np.array([True, False, False]), "before")
    assert columns[MetricKey("acc", "before")] == columns[MetricKey("acc", "before", average="pooled")] == 0.5
    assert np.isnan(values["acc"][1:]).all()


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize("average", ["", "_pooled", "_worst10"])
@pytest.mark.parametrize("metric", ["loss", "acc"])
def test_a_diverged_client_never_improves_a_mean(metric, average, loss):
    """A loss that is not finite must reach every average: the client was tested. Its accuracy has no meaning."""
    rows = np.vstack([table((1, 2), (9, 10)), [[3.0, loss, 10.0]]])
    assert math.isnan(columns_of(rows, "before")[f"{metric}_before{average}"])


def test_nobody_tested_gives_no_column():
    assert summarize(TASK, np.zeros((2, 3)), np.zeros(2, dtype=bool), "after")[1] == {}


def test_nan_is_the_last_value_but_never_the_best():
    best, key = Best(TASK.better, 1), MetricKey("loss", "before")
    for value in (0.5, math.nan):
        best.enter_columns({key: value})
    assert math.isnan(best.last[key])
    assert best.best[key] == 0.5


@pytest.mark.parametrize("metric", ["acc", "loss"])
def test_a_client_that_was_never_finite_spoils_the_best_per_client(metric):
    """Client 1 is never finite, client 2 is not tested. Client 0 once had a value: that one counts."""
    tested = np.array([True, True, False])

    def mean(*evaluations: list[float]) -> float:
        best = Best(TASK.better, 3)
        for values in evaluations:
            best.enter_clients("all", "before", {metric: np.array([*values, math.nan])}, tested=tested)
        return best.summary()["best_per_client_evaluations"][f"{metric}_before"]

    assert math.isnan(mean([0.5, math.nan], [math.nan, math.nan]))
    assert mean([0.5, math.nan], [math.nan, 0.25]) == 0.375


def test_participations_and_evaluations_have_their_own_best():
    best = Best(TASK.better, 2)
    best.enter_clients("participants", "before", {"acc": np.array([0.2, 0.4])})
    best.enter_clients("all", "before", {"acc": np.array([0.9, 0.9])})
    summary = best.summary()
    assert summary["best_per_client_visits"] == {"acc_before": pytest.approx(0.3)}
    assert summary["best_per_client_evaluations"] == {"acc_before": pytest.approx(0.9)}


def test_last_best_and_best_per_client_by_hand():
    """Client 0: 0.2, 0.8; client 1: 0.6, absent, then 0.1 → own bests 0.8 and 0.6, mean 0.7. Loss: lower is better."""
    best = Best(TASK.better, 2)
    best.enter_clients("participants", "after", per_client(TASK, table((2, 10), (6, 10))))
    best.enter_clients("participants", "after", per_client(TASK, np.vstack([table((8, 10)), np.full((1, 3), np.nan)])))
    best.enter_clients("participants", "after", per_client(TASK, table((1, 10))), [1])
    accuracy, loss = MetricKey("acc", "after"), MetricKey("loss", "after")
    global_accuracy = MetricKey("acc", "global", "all")
    best.enter_columns({accuracy: 0.4, loss: 0.3, global_accuracy: 0.1})
    best.enter_columns({accuracy: 0.3, loss: 0.2, global_accuracy: math.nan})
    summary = best.summary()
    assert summary["best_per_client_visits"]["acc_after"] == pytest.approx(0.7)
    assert math.isnan(summary["last"].pop("all_global_acc"))
    assert summary["last"] == {"acc_after": 0.3, "loss_after": 0.2}
    assert summary["best"] == {"acc_after": 0.4, "loss_after": 0.2, "all_global_acc": 0.1}
