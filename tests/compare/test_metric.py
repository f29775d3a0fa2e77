from __future__ import annotations

import math

import pytest

from pfl_lightning.compare.experiment import Report
from pfl_lightning.compare.metric import metric_from
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.tasks.logged_sums import direction

ACC = {"acc": "higher", "loss": "lower"}


def test_columns_are_taken_apart():
    metric = metric_from(Report("all_acc_after_worst10", "best"), ACC, False)
    assert (metric.name, metric.moment, metric.average, metric.everyone) == ("acc", "after", "_worst10", True)
    assert metric.client_column == "all_acc_after"
    metric = metric_from(Report("all_global_top1_acc_pooled"), {}, False)
    assert (metric.name, metric.moment, metric.average, metric.percent) == ("top1_acc", "global", "_pooled", True)
    metric = metric_from(Report("acc_before"), ACC, False)
    assert (metric.everyone, metric.client_column) == (False, "acc_before")


def test_the_default_is_the_task_s_main_metric():
    assert metric_from(Report(), {"rmse": "lower"}, False).column == "all_rmse_before"
    assert metric_from(Report(), ACC, True).column == "all_acc_finetuned"


@pytest.mark.parametrize(
    ("report", "directions", "higher"),
    [
        (Report("all_acc_before"), ACC, True),
        (Report("all_loss_before"), ACC, False),
        (Report("all_test_rmse_before"), {}, False),
        (Report("all_auroc_before"), {}, True),
        (Report("all_nllloss_before"), {}, False),
        (Report("all_odd_before", better="lower"), {"odd": "higher"}, False),
    ],
)
def test_directions(report, directions, higher):
    assert metric_from(report, directions, False).higher is higher


@pytest.mark.parametrize("name", ["celoss", "mape", "test_error", "acc", "auroc"])
def test_a_name_means_the_same_to_a_run_and_to_a_comparison(name):
    assert metric_from(Report(f"all_{name}_before"), {}, False).higher is (direction(name, None) == "higher")


def test_a_metric_that_the_task_does_not_have_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"report\.metric: all_f1_before is not measured; the task has acc \| loss"):
        metric_from(Report("all_f1_before"), ACC, False, complete=True)


def test_the_definition_says_everything():
    text = metric_from(Report("all_acc_before_pooled", "best"), ACC, False).definition()
    for words in ("accuracy in %", "`all_acc_before_pooled`", "test samples of all clients together", "before local",
                  "best value on the test data, which flatters"):  # fmt: skip
        assert words in text


def test_values_are_written_in_their_unit():
    acc, rmse = metric_from(Report(), ACC, False), metric_from(Report("all_rmse_before"), {}, False)
    assert acc.text(0.84251) == "84.3"
    assert rmse.text(0.0152) == "0.01520"
    assert metric_from(Report("all_acc_before", digits=2), ACC, False).text(0.84251) == "84.25"
    assert acc.text(math.nan) == "nan"


def test_the_best_is_never_nan():
    acc, loss = metric_from(Report(), ACC, False), metric_from(Report("all_loss_before"), ACC, False)
    assert acc.best([math.nan, 0.2, 0.5, 0.5]) == 2
    assert loss.best([math.nan, 0.5, 0.2]) == 2


def test_the_best_of_each_client_is_defined_by_its_participations_or_by_evaluations():
    visits = metric_from(Report("acc_before", "best_per_client"), ACC, False).definition()
    assert "each client at its own best participation" in visits
    assert "mean over all clients" in visits
    evaluations = metric_from(Report("all_acc_before", "best_per_client"), ACC, False).definition()
    assert "each client at its own best evaluation" in evaluations


def test_what_a_run_records_besides_tests():
    metric = metric_from(Report("up_mib", "mean"), ACC, False)
    assert not metric.higher
    assert metric.definition() == "`up_mib` mean over all rounds: MiB that a client of the round sends, on average"
    with pytest.raises(ConfigError, match=r"report\.select: 'best' is not allowed; use last or mean for up_mib"):
        metric_from(Report("up_mib", "best"), ACC, False)


def test_clients_that_never_take_part_have_columns_of_their_own():
    metric = metric_from(Report("held_out_acc_after"), ACC, False, complete=True)
    assert (metric.name, metric.everyone, metric.client_column) == ("acc", True, "held_out_acc_after")
    assert metric.short == "after, held out"
    assert "mean over the clients that never take part in training" in metric.definition()
    assert "first visit, which takes place after the last round" in metric.definition()


@pytest.mark.parametrize("report", [Report("held_out_global_acc"), Report("held_out_acc_validation")])
def test_moments_of_held_out_clients_that_no_run_records_are_refused(report):
    with pytest.raises(ConfigError, match=r"report\.metric: "):
        metric_from(report, ACC, False, complete=True)


@pytest.mark.parametrize(("column", "select"), [("after", "best"), ("after", "mean"), ("before", "best_per_client")])
def test_a_single_test_of_held_out_clients_has_no_best_round(column, select):
    with pytest.raises(ConfigError, match=rf"report\.select: '{select}' is not allowed; use last for held_out_acc_"):
        metric_from(Report(f"held_out_acc_{column}", select), ACC, False)
