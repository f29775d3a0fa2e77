"""`fit` from Python: results, models, progress, and what it leaves as it was."""

from __future__ import annotations

import math
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

import pfl_lightning
from pfl_lightning import Classification, fit
from pfl_lightning.algorithms import FedAvg, FedPer
from pfl_lightning.callback import Callback, EarlyStopping
from pfl_lightning.data import IID, Fashion10k
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.notebook.table import Table
from tests.helpers.callbacks import AfterRound
from tests.helpers.pretended_gpu import PretendedGpu
from tests.helpers.toy import PlainNet, ToyData, ToyNet
from tests.tasks.lit_modules import LitClassifier

TOY = {"participation": 0.6, "batch_size": 8, "progress": False}


@pytest.fixture(scope="module")
def result():
    return fit(FedPer, Classification(ToyNet), ToyData(), rounds=3, eval_every=2, seed=4, **TOY)


def test_the_result_has_tables(result):
    assert result.metrics["round"] == [1, 2, 3]
    assert result.rounds == 3
    assert not result.interrupted
    assert result.metrics["acc_after"][-1] == result.summary["last"]["acc_after"]
    assert math.isnan(result.metrics["all_acc_before"][0])
    assert result.clients["client"] == list(range(7))
    assert np.nanmean(result.clients["all_acc_before"]) == pytest.approx(result.summary["last"]["all_acc_before"])
    assert sum(result.clients["visits"]) == 3 * 4
    assert repr(result).startswith("FitResult(FedPer on ToyData, 3 of 3 rounds, all_acc_before ")


def test_progress_says_which_clients_evaluations_test(capsys):
    fit(FedAvg, Classification(ToyNet), ToyData(), rounds=1, eval_clients=3, **(TOY | {"progress": True}))
    assert "evaluated  3 of 7 clients, drawn once from the seed" in capsys.readouterr().out


def test_a_client_is_a_module_whose_predictions_were_tested(result):
    data = result.loop.data
    for client in (0, 3):
        indices = data.test_indices(client)
        outputs = result.client(client)(data.samples.x[indices])
        accuracy = (outputs.argmax(1) == data.samples.y[indices]).double().mean()
        assert accuracy.item() == pytest.approx(result.clients["all_acc_before"][client])
    one, other, shared = (
        list(model.parameters()) for model in (result.client(0), result.client(3), result.global_model())
    )
    assert torch.equal(one[0], other[0]), "FedPer shares the body"
    assert not torch.equal(one[-1], other[-1]), "and not the head"
    assert torch.equal(one[0], shared[0])
    with pytest.raises(ConfigError, match="client: 7 is not in this run; use a number from 0 to 6"):
        result.client(7)


@pytest.mark.parametrize("asked", [True, False])
def test_on_a_gpu_it_computes_the_same_bits_and_then_leaves_torch_as_it_was(asked):
    seen: list[tuple[bool, bool]] = []

    def look(record: object) -> None:
        seen.append((torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.allow_tf32))

    with PretendedGpu():
        fit(FedAvg, Classification(PlainNet), ToyData(), 1, deterministic=asked, callbacks=[AfterRound(look)], **TOY)
    assert seen == [(asked, not asked)]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32


def test_it_is_the_loop_and_leaves_everything_as_it_was():
    task, data = Classification(ToyNet), ToyData()
    torch.set_num_threads(2)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    handler = signal.getsignal(signal.SIGINT)  # a command that a test ran in this process may have left its own
    one = fit(FedAvg(), task, data, rounds=2, seed=1, **TOY)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == 2
    assert signal.getsignal(signal.SIGINT) is handler
    again = fit(FedAvg(), task, data, rounds=2, seed=1, **TOY)
    assert again.summary["model_sha256"] == one.summary["model_sha256"]
    assert not hasattr(data, "samples")


def test_interrupting_returns_what_was_done():
    def press(record):
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = fit(FedAvg, Classification(ToyNet), ToyData(), rounds=9, callbacks=[AfterRound(press)], **TOY)
    assert stopped.interrupted
    assert stopped.rounds == 2
    assert stopped.metrics["round"] == [1, 2]
    short = fit(FedAvg, Classification(ToyNet), ToyData(), rounds=2, eval_every=0, **TOY)
    assert stopped.summary["model_sha256"] == short.summary["model_sha256"]
    assert stopped.client(0) is not None


def test_an_interrupt_in_the_first_round_is_a_result_without_rounds():
    class Press(Callback):
        def on_visit_end(self, result):
            os.kill(os.getpid(), signal.SIGINT)

    stopped = fit(FedAvg, Classification(ToyNet), ToyData(), rounds=9, callbacks=[Press()], **TOY)
    assert stopped.rounds == 0
    assert stopped.metrics["round"] == []
    assert "interrupted" in repr(stopped)


def test_it_runs_in_a_thread_of_a_notebook_server():
    results = []
    thread = threading.Thread(target=lambda: results.append(fit(FedAvg, Classification(ToyNet), ToyData(), 1, **TOY)))
    thread.start()
    thread.join()
    assert results[0].rounds == 1


def test_progress_shows_where_there_is_no_terminal(capsys):
    fit(FedAvg, LitClassifier, ToyData(), rounds=2, eval_every=1, batch_size=8)
    out = capsys.readouterr().out
    assert "data       ToyData, 7 clients" in out
    assert "[2/2] before" in out


def test_loggers_and_early_stopping(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    stop = EarlyStopping(patience=1, min_delta=1.0)
    stopped = fit(
        FedAvg, Classification(ToyNet), ToyData(), rounds=9, eval_every=1, callbacks=[stop], loggers=[logger], **TOY
    )
    assert stopped.rounds == 2
    assert not stopped.interrupted
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert "acc_after" in header
    assert len(rows) == 2


def test_the_default_data_is_embedded_images():
    data = Fashion10k(num_clients=2, partition=IID())
    images = fit(FedAvg, data=data, rounds=1, local_epochs=0, eval_every=0, progress=False)
    assert images.client(1)(torch.zeros(3, 28, 28, 1, dtype=torch.uint8)).shape == (3, 10)


def test_a_wrong_setting_is_one_line():
    with pytest.raises(ConfigError, match="participation: 2 is not allowed"):
        fit(FedAvg, participation=2)


def test_tables_are_shown():
    table = Table(round=list(range(12)), acc=[0.5] * 11 + [math.nan])
    assert repr(table).splitlines()[:3] == ["round  acc", "… 2 earlier rows", "    2  0.5"]
    assert "<th>acc</th>" in table._repr_html_()
    assert "… 2 earlier rows" in table._repr_html_()
    assert "fit" in pfl_lightning.__all__


def test_unusual_data_is_a_warning_at_the_call():
    class Unusual(ToyData):
        def validate_partition(self) -> list[str]:
            return [*super().validate_partition(), "one client is odd"]

    with pytest.warns(UserWarning, match="one client is odd") as caught:
        fit(FedAvg, Classification(ToyNet), Unusual(), rounds=1, **TOY)
    assert [Path(one.filename).name for one in caught if "odd" in str(one.message)] == [Path(__file__).name]
