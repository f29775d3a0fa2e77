"""`load_client` on runs of the command."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pfl_lightning
from pfl_lightning.cli.saved_run import open_run
from pfl_lightning.data import Fashion10k
from pfl_lightning.export.inputs import ScaledImages, input_module
from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.tiny_runs import CLIENTS, fit_images, fit_series


def last_rows(run: Path) -> list[dict[str, str]]:
    with (run / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row["round"] == rows[-1]["round"]]


def accuracy(saved: SavedRun, client: int, module: nn.Module) -> float:
    indices, samples = saved.loop.data.test_indices(client), saved.loop.data.samples
    return float(np.mean((module(samples.x[indices]).argmax(1) == samples.y[indices]).tolist()))


def test_files_are_all_it_takes_to_predict_as_the_run_did(tmp_path: Path) -> None:
    """From the user's own files to the accuracies in clients.csv, by client number and by name."""
    run = fit_images(tmp_path / "run", "FedPer", "--loop.finetune_epochs", "1")
    saved = open_run(run)
    for number, row in enumerate(last_rows(run)):
        assert accuracy(saved, number, saved.predictor(number)) == float(row["all_acc_before"])
        assert accuracy(saved, number, saved.predictor(number, finetuned=True)) == float(row["all_acc_finetuned"])
    for client in (2, CLIENTS[2]):
        module = pfl_lightning.load_client(run, client)
        assert isinstance(module, nn.Module)
        assert not module.training
        assert accuracy(saved, 2, module) == float(last_rows(run)[2]["all_acc_before"])


def test_random_state_and_threads_of_the_caller_stay(tmp_path: Path) -> None:
    run = fit_images(tmp_path / "run", "FedAvg", "--loop.rounds", "1")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    torch.set_num_threads(2)
    try:
        pfl_lightning.load_client(run, 0)
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.rand(2), expected)
    finally:
        torch.set_num_threads(1)


def test_series_are_predicted_too(tmp_path: Path) -> None:
    run = fit_series(tmp_path / "run", "FedAvg", "--task.net", "LSTM")
    saved = open_run(run)
    indices, samples = saved.loop.data.test_indices(1), saved.loop.data.samples
    with torch.no_grad():
        error = pfl_lightning.load_client(run, 1)(samples.x[indices]).double() - samples.y[indices].double()
    assert float(error.square().mean().sqrt()) == pytest.approx(float(last_rows(run)[1]["all_rmse_before"]), rel=1e-12)


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_are_normalised_bit_for_bit_as_in_the_run(channels_last: bool) -> None:
    data = Fashion10k(num_clients=3)
    data.setup(0)
    data.to("cpu", channels_last)
    module = input_module(data, channels_last)
    assert isinstance(module, ScaledImages)
    indices = torch.arange(100, 120)
    wanted, _ = data.batch(indices, torch.device("cpu"))
    made = module(data.samples.x[indices])
    assert torch.equal(made, wanted)
    assert made.is_contiguous() == wanted.is_contiguous()


class OwnBatch(Fashion10k):
    def batch(self, indices, device, augment_seed=None):  # type: ignore[no-untyped-def]
        x, y = super().batch(indices, device, augment_seed)
        return x.square(), y


def test_data_that_changes_inputs_in_its_own_way_is_refused() -> None:
    data = OwnBatch(num_clients=3)
    data.setup(0)
    with pytest.raises(ConfigError, match=r"data: OwnBatch\.batch changes inputs in its own way"):
        input_module(data)


def test_what_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run: there is no directory"):
        pfl_lightning.load_client(tmp_path / "nowhere", 0)
    with pytest.raises(ConfigError, match="no model that can be read: there is no checkpoint"):
        pfl_lightning.load_client(tmp_path, 0)
    run = fit_images(tmp_path / "run", "FedAvg", "--loop.rounds", "1")
    with pytest.raises(ConfigError, match=r"loop\.finetune_epochs 0"):
        pfl_lightning.load_client(run, 0, finetuned=True)


def test_code_from_elsewhere_runs_only_with_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from pfl_lightning.algorithms import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "code_of_mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    run = fit_images(tmp_path / "run", "code_of_mine.Mine", "--loop.rounds", "1")
    with pytest.raises(ConfigError, match=r"run: .* uses code_of_mine\.Mine from outside pfl_lightning"):
        pfl_lightning.load_client(run, 0)
    assert isinstance(pfl_lightning.load_client(run, 0, trust=True), nn.Module)
