"""The questions of the field, on numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfl_lightning.compare.questions import answer
from pfl_lightning.compare.statistics import holm
from tests.compare.test_table import outcomes
from tests.helpers.comparisons import experiment

VALUES = {("FedAvg", ""): [0.5, 0.6], ("FedOBP", ""): [0.8, 0.9], ("Local", ""): [0.4, 0.4]}
CLIENTS = {"FedAvg": [0.2, 0.6, 0.4], "FedOBP": [0.5, 0.9, 0.1], "Local": [0.3, 0.5, 0.4]}
NET = {"task.net.class_path": "toy.ResNet"}


def answers(clients=CLIENTS, **content):
    made = experiment(seeds=[0, 1], controls=["Local"], **content)
    return answer(made, outcomes(made, VALUES, clients), "")


def texts(found, key):
    question = next((q for q in found.questions if q.key == key), None)
    return None if question is None else dict(zip(found.methods, question.texts, strict=True))


def test_clients_left_behind():
    found = answers()
    assert texts(found, "worst_tenth") == {"FedAvg": "20.0", "FedOBP": "10.0", "Local": "30.0"}
    assert texts(found, "spread") == {"FedAvg": "16.3", "FedOBP": "32.7", "Local": "8.2"}
    assert texts(found, "worse_than_local") == {"FedAvg": "33", "FedOBP": "33", "Local": ""}


def test_a_row_that_trains_alone_is_the_reference_whatever_it_is_called():
    methods = {"FedAvg": None, "FedOBP": None, "Local-Only": {"algorithm": "Local"}}
    made = experiment(seeds=[0, 1], controls=[], methods=methods)
    values = {**VALUES, ("Local-Only", ""): VALUES["Local", ""]}
    found = answer(made, outcomes(made, values, {**CLIENTS, "Local-Only": CLIENTS["Local"]}), "")
    assert texts(found, "worse_than_local") == {"FedAvg": "33", "FedOBP": "33", "Local-Only": ""}
    assert "Local-Only" in found.references


def test_columns_that_no_run_can_answer_are_left_out():
    found = answers(clients=None)
    assert texts(found, "spread") is None
    assert texts(found, "worse_than_local") is None
    assert texts(found, "by_validation") is None
    assert found.comparisons == ()
    assert texts(found, "best_on_test") == {"FedAvg": "55.0", "FedOBP": "85.0", "Local": "40.0"}


def test_the_cost_of_reaching_a_value():
    """A round sends 2 MiB and makes 10 steps; the value grows by 10 points a round, up to the last."""
    found = answers(report={"target": 60})
    assert texts(found, "mib_to_target") == {"FedAvg": "—", "FedOBP": "3", "Local": "—"}
    assert texts(found, "steps_to_target") == {"FedAvg": "—", "FedOBP": "15", "Local": "—"}


def test_the_value_to_reach_is_fedavg_s_by_default():
    found = answers()
    question = next(q for q in found.questions if q.key == "mib_to_target")
    assert question.title == "MiB to reach 50.0 %"
    assert texts(found, "mib_to_target") == {"FedAvg": "7", "FedOBP": "2", "Local": "—"}


def test_a_single_evaluation_does_not_tell_when_a_value_was_reached():
    """Nor which round was best: every value would be that of the whole run."""
    made = experiment(seeds=[0, 1], controls=["Local"])
    column = outcomes(made, VALUES, CLIENTS)
    late = []
    for outcome in column:
        name = outcome.entry.metric.column
        for m in outcome.measurements:
            kept = [{k: v for k, v in row.items() if k != name or row["round"] == 4} for row in m.facts.rounds]
            late.append(replace(m, facts=replace(m.facts, rounds=kept)))
    once = [replace(o, measurements=tuple(late[2 * i : 2 * i + 2])) for i, o in enumerate(column)]
    found = answer(made, once, "")
    assert [texts(found, key) for key in ("mib_to_target", "steps_to_target", "best_on_test")] == [None] * 3
    mixed = answer(made, [once[0], *column[1:]], "")
    assert texts(mixed, "mib_to_target") == {"FedAvg": "", "FedOBP": "2", "Local": "—"}


def test_each_test_counts_once_in_holm_s_correction():
    """FedAvg against Local is the same test as Local against FedAvg."""
    steps = [n / 100 for n in range(1, 9)]
    clients = {"FedAvg": [0.5 + n for n in steps], "FedOBP": [0.6 + 3 * n for n in steps], "Local": [0.5] * 8}
    found = answers(clients)
    raw = {(method, other): result.p for method, other, result, _ in found.comparisons}
    tests = [raw["FedAvg", "Local"], raw["FedOBP", "Local"], raw["FedOBP", "FedAvg"]]
    expected = dict(zip([("FedAvg", "Local"), ("FedOBP", "Local"), ("FedOBP", "FedAvg")], holm(tests), strict=True))
    corrected = {(method, other): p for method, other, _, p in found.comparisons}
    assert max(corrected.values()) == pytest.approx(3 * 2 / 2**8)
    assert corrected == {**expected, ("Local", "FedAvg"): expected["FedAvg", "Local"]}


def test_totals():
    found = answers()
    assert texts(found, "mib") == {"FedAvg": "8", "FedOBP": "8", "Local": "8"}
    assert texts(found, "steps_per_visit") == {"FedAvg": "5.0", "FedOBP": "5.0", "Local": "5.0"}


def test_every_method_is_compared_with_the_references():
    found = answers()
    pairs = {(method, other): result for method, other, result, _ in found.comparisons}
    assert pairs.keys() == {("FedAvg", "Local"), ("FedOBP", "Local"), ("FedOBP", "FedAvg"), ("Local", "FedAvg")}
    assert pairs["FedOBP", "Local"].difference == pytest.approx(0.1)
    assert pairs["FedOBP", "Local"].pairs == 3  # clients, not clients times seeds


def test_other_clients_are_not_paired():
    methods = {"FedAvg": None, "FedOBP": {"data.alpha": 0.9}}
    pairs = {(method, other) for method, other, _, _ in answers(methods=methods).comparisons}
    assert pairs == {("FedAvg", "Local"), ("Local", "FedAvg")}
    assert texts(answers(methods=methods), "worse_than_local") == {"FedAvg": "33", "FedOBP": "", "Local": ""}


def test_another_net_is_compared_with_the_controls_of_that_net():
    methods = {"FedAvg": None, "FedOBP": NET, "Local": None, "Local, ResNet": {"algorithm": "Local", **NET}}
    values = {(method, ""): [0.5, 0.6] for method in methods}
    clients = {**CLIENTS, "Local, ResNet": [0.6, 0.8, 0.2]}
    made = experiment(seeds=[0, 1], methods=methods, controls=[])
    found = answer(made, outcomes(made, values, clients), "")
    assert texts(found, "worse_than_local")["FedOBP"] == "67"  # 0.5 < 0.6 and 0.1 < 0.2
    assert texts(found, "worse_than_local")["FedAvg"] == "33"
    pairs = {(method, other): result.difference for method, other, result, _ in found.comparisons}
    assert pairs["FedOBP", "Local"] == pytest.approx((-0.1 + 0.1 - 0.1) / 3)
    assert ("FedOBP", "FedAvg") not in pairs  # there is no FedAvg with that net
    assert ("Local, ResNet", "Local") not in pairs


def test_a_method_is_compared_with_itself_alone():
    made = experiment(seeds=[0, 1], methods=["FedAvg", "Ditto"], controls=["Local", "alone"])
    values = {(method, ""): [0.5, 0.6] for method in ("FedAvg", "Ditto", "Ditto, alone", "Local")}
    clients = {**CLIENTS, "Ditto": [0.5, 0.5, 0.5], "Ditto, alone": [0.1, 0.2, 0.3]}
    found = answer(made, outcomes(made, values, clients), "")
    pairs = {(method, other): result.difference for method, other, result, _ in found.comparisons}
    assert pairs["Ditto", "itself alone"] == pytest.approx(0.3)
    assert {other for _, other in pairs} == {"Local", "FedAvg", "itself alone"}  # and not "Ditto, alone" for all
    assert found.references == ("FedAvg", "Local", "itself alone")
