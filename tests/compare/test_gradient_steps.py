"""Gradient steps are those that the clients have taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pfl_lightning.cli import fit
from pfl_lightning.compare.gradient_steps import batches_per_pass, gradient_steps, visits
from pfl_lightning.compare.run_facts import RunFacts, read_facts
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.local_training import split_batches


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_a_pass_has_as_many_batches_as_the_client_makes(batch_size: int) -> None:
    sizes = np.arange(1, 100, dtype=np.float64)
    real = [len(split_batches(torch.arange(int(size)), batch_size)) for size in sizes]
    assert batches_per_pass(sizes, batch_size).tolist() == real


def test_worked_by_hand() -> None:
    """Two passes over 33 samples are 2 batches of 33, one pass over 40 has 2 batches."""
    clients = {"samples": {4: np.array([66.0, 40.0, 0.0])}, "visits": {4: np.array([2.0, 1.0, 0.0])}}
    rounds = [{"round": r, "samples": 26.5} for r in range(1, 5)]
    facts = RunFacts({}, rounds, clients, train_sizes=np.array([33.0, 40.0, 0.0]))
    assert gradient_steps(facts, 4, 32) == 2 * 1 + 1 * 2
    assert visits(facts, planned=9) == 3
    assert gradient_steps(facts, 2, 32) == 53 / 32  # no evaluation in this round: full batches
    assert visits(RunFacts({}, rounds), planned=9) == 9


@pytest.mark.parametrize("method", ["FedAvg", "APFL"])
def test_a_real_run_is_counted_step_by_step(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    original = ClientModule.record_step
    monkeypatch.setattr(ClientModule, "record_step", lambda *args: (counted.append(1), original(*args))[1])
    words = ["--algorithm", method, "--task.net", "SmallCNN", "--loop.participation", "0.03", "--loop.rounds", "2"]
    assert fit.run([*words, "--fabric.devices", "1", "--run_dir", str(tmp_path / "run")]) == 0
    facts = read_facts(tmp_path / "run")
    assert gradient_steps(facts, 2, 32) == pytest.approx(len(counted))
    assert visits(facts, planned=0) == 6
