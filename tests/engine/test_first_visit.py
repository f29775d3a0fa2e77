"""Clients that are kept out of training: after the last round the method gives them a model, as at a first visit."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch.optim import SGD

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import FedAvg, FedPer, PFedSOP
from pfl_lightning.engine import evaluation
from pfl_lightning.engine.first_visit import train_first_visit
from pfl_lightning.foundation.errors import DivergedError
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.monitor.client_tables import ClientTables
from pfl_lightning.tasks import Classification
from tests.algorithms.test_contract import ALGORITHMS, name
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import ToyData, ToyNet

HELD_OUT = "held_out_acc_after"


def make(algorithm: Algorithm, fabric: Fabric | None = None, **config: Any) -> FederatedFabricLoop:
    """A toy run that keeps two of its seven clients out of training."""
    data = ToyData()
    data.held_out_clients = 0.3
    data.setup(1)
    momentum = 0.0 if isinstance(algorithm, PFedSOP) else 0.5
    task = Classification(ToyNet, lambda p: SGD(p, lr=0.1, momentum=momentum))
    settings = {"rounds": 3, "local_epochs": 2, "batch_size": 8, "eval_every": 1, **config}
    return FederatedFabricLoop(
        fabric or Fabric(accelerator="cpu", devices=1), task, algorithm, data, LoopConfig(**settings), 1
    )


def rounds(loop: FederatedFabricLoop) -> list[RoundRecord]:
    return [loop.round() for _ in range(loop.config.rounds)]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_they_are_tested_after_one_visit_of_the_method(algorithm: Algorithm) -> None:
    """For every method: the mean of the visits that are made here by hand, and nothing of them is left in the run."""
    loop = make(algorithm, rounds=2, participation=0.6)
    first, last = rounds(loop)
    held_out = loop.data.held_out.tolist()
    assert len(held_out) == 2
    assert HELD_OUT not in first.scalars
    server, clients = loop.server.fingerprint(), loop.store.digest()
    sums = [train_first_visit(loop.engine.client, c, algorithm, loop.server) for c in held_out]
    values = [loop.task.metrics(dict(zip(loop.task.sums, s[:, None].numpy(), strict=True)))["acc"][0] for s in sums]
    assert last.scalars[HELD_OUT] == pytest.approx(np.mean(values), abs=1e-12)
    assert last.per_client[HELD_OUT][held_out].tolist() == pytest.approx(values, abs=1e-12)
    assert np.isnan(np.delete(last.per_client[HELD_OUT], held_out)).all()
    assert (loop.server.fingerprint(), loop.store.digest()) == (server, clients)
    assert loop.history.client_totals["visits"][held_out].tolist() == [0, 0]


def test_any_number_of_ranks_has_the_same_values() -> None:
    def work(fabric: Fabric) -> dict[str, float]:
        scalars = rounds(make(FedPer(), fabric))[-1].scalars
        return {key: value for key, value in scalars.items() if key.startswith("held_out_")}

    (alone,) = run_on_ranks(work, 1)
    assert HELD_OUT in alone
    assert run_on_ranks(work, 3) == [alone] * 3


def test_clients_that_take_part_have_the_same_results_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> tuple[list[dict[str, float]], str]:
        loop = make(FedPer())
        records = rounds(loop)
        kept = [{k: v for k, v in r.scalars.items() if k not in ("seconds",) and "after" not in k} for r in records]
        return kept, loop.store.digest()

    with_visits = results()
    monkeypatch.setattr(evaluation, "_after_first_visit", lambda client, *_: torch.zeros(len(client.task.sums)))
    assert results() == with_visits


def test_one_that_diverges_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: object) -> None:
        raise DivergedError("its model is not finite")

    monkeypatch.setattr(evaluation, "train_first_visit", diverge)
    last = rounds(make(FedAvg()))[-1].scalars
    assert np.isnan(last[HELD_OUT])
    assert last["held_out_acc_before"] > 0


def test_each_of_them_is_in_the_table_of_clients(tmp_path: Path) -> None:
    loop = make(FedPer(), rounds=2)
    loop.fit([ClientTables(tmp_path, loop)])
    with (tmp_path / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    held_out = {str(client) for client in loop.data.held_out.tolist()}
    assert {row["client"] for row in rows if row["held_out_acc_before"]} == held_out
    assert {(row["round"], row["client"]) for row in rows if row[HELD_OUT]} == {("2", client) for client in held_out}
    assert not any(row["all_acc_before"] for row in rows if row["client"] in held_out)
