"""The names that a comparison looks for are those that a run writes, and NaN is never passed over."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.experiment import Report
from pfl_lightning.compare.measurement import check_clients, measure, validation_value
from pfl_lightning.compare.metric import metric_from
from pfl_lightning.compare.run_facts import RunFacts, Unreadable, read_facts
from pfl_lightning.compare.run_folder import examine
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.tasks import Classification
from tests.helpers.comparisons import ToyResolver, experiment, write_run
from tests.helpers.toy import ToyData, ToyNet

DIRECTIONS = {"acc": "higher", "loss": "lower"}


@pytest.fixture(scope="module")
def facts() -> RunFacts:
    """A real run with validation samples."""
    data = ToyData()
    data.validation_share = 0.3
    data.setup(1)
    config = LoopConfig(rounds=2, batch_size=8, eval_every=1, participation=0.6)
    fabric = Fabric(accelerator="cpu", devices=1)
    loop = FederatedFabricLoop(fabric, Classification(ToyNet), FedAvg(), data, config)
    rounds = [{"round": number, **loop.round().scalars} for number in (1, 2)]
    return RunFacts(loop.summary(), rounds)


@pytest.fixture
def cell():
    return next(iter(Comparison(experiment(seeds=[0]), ToyResolver()).stage({}).cells.values()))


@pytest.mark.parametrize("column", ["acc_before", "acc_after", "all_acc_before", "all_loss_before"])
def test_the_best_per_client_of_a_real_run_is_found(column, facts, cell, tmp_path):
    """Columns of participants count participations, columns of all clients count evaluations."""
    found = measure(cell, tmp_path, facts, metric_from(Report(column, "best_per_client"), DIRECTIONS, False))
    entry = "best_per_client_evaluations" if column.startswith("all_") else "best_per_client_visits"
    assert found.value == facts.summary[entry][column.removeprefix("all_")]


@pytest.mark.parametrize("column", ["all_acc_before", "all_acc_before_pooled", "all_global_loss", "acc_after"])
def test_the_validation_columns_of_a_real_run_are_found(column, facts, cell, tmp_path):
    last = metric_from(Report(column), DIRECTIONS, False)
    assert validation_value(facts, last) == facts.at(2, last.validation_column)
    chosen = measure(cell, tmp_path, facts, metric_from(Report(column, "validation"), DIRECTIONS, False))
    best = facts.summary["best_by_validation"]
    if last.name == "acc" and not last.average:
        assert chosen.round == best["round"]


def test_a_direction_that_the_run_contradicts_is_not_guessed(cell, tmp_path):
    """Only the run knows the direction of a metric that a module logs. The wrong one would rank the worst first."""
    rows = [{"round": 2, "all_distance_before": 0.5}, {"round": 4, "all_distance_before": 0.7}]
    facts = RunFacts({"best": {"all_distance_before": 0.5}}, rows)
    with pytest.raises(Unreadable, match=r"to it a lower distance is better; set report\.better"):
        measure(cell, tmp_path, facts, metric_from(Report("all_distance_before"), {}, False))
    said = metric_from(Report("all_distance_before", better="lower"), {}, False)
    assert measure(cell, tmp_path, facts, said).value == 0.7


@pytest.mark.parametrize("select", ["last", "best_per_client"])
def test_nan_is_not_reported(select, cell, tmp_path):
    row = {"round": 4, "all_acc_before": math.nan}
    summary = {"best_per_client_evaluations": {"acc_before": None}}
    facts = RunFacts(summary, [{"round": 2, "all_acc_before": 0.9}, row])
    words = "has NaN for all_acc_before after the last round" if select == "last" else "no best_per_client_evaluations"
    with pytest.raises(Unreadable, match=words):
        measure(cell, tmp_path, facts, metric_from(Report("all_acc_before", select), DIRECTIONS, False))


def test_a_run_whose_last_value_is_nan_is_read(cell, tmp_path):
    """summary.json has null, metrics.csv has nan. The last finite value is older."""
    write_run(tmp_path, cell)
    path = tmp_path / "metrics.csv"
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    rows[-1][header.index("all_acc_finetuned")] = "nan"
    path.write_text("\n".join(",".join(cells) for cells in (header, *rows)) + "\n")
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["last"]["all_acc_finetuned"] = None
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert examine(cell, tmp_path).state == "finished"
    assert math.isnan(read_facts(tmp_path).at(4, "all_acc_finetuned"))


def test_the_traffic_of_a_client_is_a_mean_over_rounds_or_the_last_value(cell, tmp_path):
    """Two rounds, in which all clients together send 1 and 3 MiB for each client."""
    clients = cell.visits // cell.rounds
    rows = [{"round": i, "up_bytes": clients * mib * 2**20} for i, mib in ((1, 1), (2, 3))]
    values = [
        measure(cell, tmp_path, RunFacts({}, rows), metric_from(Report("up_mib", select), DIRECTIONS, False)).value
        for select in ("mean", "last")
    ]
    assert values == [2.0, 3.0]


def test_a_column_that_no_round_has_is_not_reported(cell, tmp_path):
    """NaN would share the first rank: nothing is better than it."""
    facts = RunFacts({}, [{"round": float(number)} for number in range(1, 5)])
    for select in ("mean", "last", "best", "validation"):
        metric = metric_from(Report("all_f1_before", select), {}, False)
        with pytest.raises(Unreadable, match=r"its metrics\.csv has no all_f1_before"):
            measure(cell, tmp_path, facts, metric)


def test_a_mean_over_rounds_leaves_out_no_round_that_is_nan(cell, tmp_path):
    facts = RunFacts({}, [{"round": 1, "train_loss": 0.5}, {"round": 2, "train_loss": math.nan}])
    metric = metric_from(Report("train_loss", "mean"), DIRECTIONS, False)
    with pytest.raises(Unreadable, match="has NaN for train_loss"):
        measure(cell, tmp_path, facts, metric)


def test_a_comparison_of_clients_that_never_took_part(tmp_path):
    """From a real run: the mean, the worst tenth and the values of single clients."""
    data = ToyData()
    data.held_out_clients = 0.3
    data.setup(1)
    config = LoopConfig(rounds=2, batch_size=8, eval_every=1)
    loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), Classification(ToyNet), FedAvg(), data, config)
    records = [loop.round() for _ in range(2)]
    rounds = [{"round": record.round, **record.scalars} for record in records]
    of_clients = {"held_out_acc_after": {2: records[1].per_client["held_out_acc_after"]}}
    metric = metric_from(Report("held_out_acc_after"), DIRECTIONS, False)
    cell = Comparison(experiment(), ToyResolver()).stage({}).entries[0].cells[0]
    found = measure(cell, tmp_path, RunFacts(loop.summary(), rounds, of_clients), metric)
    check_clients(found)
    assert found.clients is not None
    assert np.flatnonzero(~np.isnan(found.clients)).tolist() == data.held_out.tolist()
    assert found.value == pytest.approx(np.nanmean(found.clients))
    assert found.worst_tenth == np.nanmin(found.clients)


def test_held_out_columns_need_held_out_clients():
    with pytest.raises(ConfigError, match=r"held_out_acc_after needs data\.held_out_clients above 0"):
        Comparison(experiment(report={"metric": "held_out_acc_after"}), ToyResolver())
