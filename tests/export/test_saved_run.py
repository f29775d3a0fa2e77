"""Models of a saved run predict as the run itself did."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.algorithms import FedAvg, FedPer
from pfl_lightning.checkpoint.read_only import find_checkpoint
from pfl_lightning.export.export import export_client
from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks import Classification
from tests.algorithms.test_contract import ALGORITHMS, name
from tests.helpers.saved import assert_near, open_toy_run, save_toy_run


def sums_from_raw(run: Any, client: int, module: nn.Module) -> Tensor:
    """The sums of the client's test, from raw inputs."""
    indices, samples = run.loop.data.test_indices(client), run.loop.data.samples
    with torch.no_grad():
        return cast(Classification, run.live.task).sums_of(module(samples.x[indices]), samples.y[indices])


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_every_client_predicts_as_in_the_last_evaluation(tmp_path: Path, algorithm: Algorithm) -> None:
    evaluation = save_toy_run(tmp_path, algorithm).evaluate()
    run = open_toy_run(tmp_path, algorithm)
    for client in range(7):
        assert_near(sums_from_raw(run, client, run.predictor(client)), evaluation[client, 0])
        assert torch.equal(sums_from_raw(run, client, run.predictor(client, finetuned=True)), evaluation[client, 1])
    run.load_global()
    assert_near(sums_from_raw(run, 3, run.live_predictor(plain=True)), evaluation[3, 2])


def test_a_model_stays_as_it_is_when_another_client_is_loaded(tmp_path: Path) -> None:
    save_toy_run(tmp_path, FedPer())
    run = open_toy_run(tmp_path, FedPer())
    first = run.predictor(0)
    before = sums_from_raw(run, 0, first)
    run.load(1, finetuned=True)
    assert torch.equal(sums_from_raw(run, 0, first), before)


def test_opening_a_run_changes_nothing_in_its_directory(tmp_path: Path) -> None:
    save_toy_run(tmp_path, FedPer())
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    open_toy_run(tmp_path, FedPer()).predictor(2)
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_values_after_training_are_those_of_the_latest_visit(tmp_path: Path) -> None:
    loop = save_toy_run(tmp_path, FedPer())
    run = open_toy_run(tmp_path, FedPer())
    for client, sums in enumerate(loop.history.latest_after):
        visited = bool(loop.history.client_totals["visits"][client])
        expected = {"acc": sums[0] / 5, "loss": sums[1] / 5} if visited else {}
        assert run.after_training(client) == expected
    assert not all(run.after_training(client) for client in range(7))


class OwnTest(FedAvg):
    def test(self, client: ClientModule, server: Server) -> Tensor:
        return client.test() * 1


def test_a_method_whose_predictions_are_unknown_says_so(tmp_path: Path) -> None:
    save_toy_run(tmp_path, OwnTest())
    run = open_toy_run(tmp_path, OwnTest())
    with pytest.raises(ConfigError, match="algorithm: OwnTest has a test of its own"):
        run.predictor(0)


@pytest.mark.parametrize("client", ["7", "-1", "ann", 7])
def test_unknown_clients_are_one_clear_line(tmp_path: Path, client: int | str) -> None:
    save_toy_run(tmp_path, FedAvg(), rounds=1)
    run = open_toy_run(tmp_path, FedAvg())
    with pytest.raises(ConfigError, match=rf"client: {client} is not in .* from 0 to 6"):
        run.number_of(client)
    assert run.number_of("3") == 3
    run.loop.data.client_names = tuple("abcdefg")
    assert run.number_of("c") == 2


def test_a_broken_checkpoint_is_passed_over_with_a_warning_and_a_missing_one_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        find_checkpoint(tmp_path)
    save_toy_run(tmp_path, FedPer())
    rounds = sorted(int(path.stem) for path in (tmp_path / "checkpoints").glob("*.json"))
    assert find_checkpoint(tmp_path).round == rounds[-1]
    assert capsys.readouterr().err == ""
    next((tmp_path / "checkpoints").glob(f"{rounds[-1]:08d}-server*")).write_bytes(b"broken")
    assert find_checkpoint(tmp_path).round == rounds[0]
    words = f"pfl_lightning: warning: the checkpoint of round {rounds[-1]} in {tmp_path} cannot be used: "
    err = capsys.readouterr().err
    assert err.startswith(words)
    assert err.endswith(f"; this is round {rounds[0]}\n")


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    save_toy_run(tmp_path, FedAvg(), rounds=1)
    with pytest.raises(ConfigError, match="belongs to another model"):
        open_toy_run(tmp_path, FedAvg(), num_clients=5)


def test_a_diverged_model_is_not_written_and_has_no_results(tmp_path: Path) -> None:
    """A NaN model predicts class 0, so its accuracy would look like a number."""
    save_toy_run(tmp_path / "run", FedPer())
    run = open_toy_run(tmp_path / "run", FedPer())
    run.loop.server.vector.fill_(math.nan)
    with pytest.raises(
        RunError, match=r"the personal model of client 0 has diverged: body\.0\.weight is NaN or infinite"
    ):
        export_client(run, 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert all(math.isnan(value) for value in run.values([3.0, math.nan, 5.0]).values())
