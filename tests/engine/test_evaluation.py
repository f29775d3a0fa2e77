"""Which clients are tested, and when: `loop.eval_clients` and `loop.test_every`."""

from __future__ import annotations

import math

import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.engine.cohort import draw_evaluated
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import LoopConfig
from pfl_lightning.metrics.record import RoundRecord
from tests.helpers.callbacks import AfterRound
from tests.helpers.toy import fingerprint, toy_loop, toy_summary

METHOD = FedOBP(quantile=0.8)
SETTINGS = {"rounds": 4, "participation": 0.6, "eval_every": 2}


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def test_the_sample_is_fixed_by_the_seed():
    assert draw_evaluated(1, 7, None) == draw_evaluated(1, 7, 7) == draw_evaluated(1, 7, 9) == list(range(7))
    sample = draw_evaluated(1, 1000, 20)
    assert len(set(sample)) == 20
    assert sample == sorted(sample) == draw_evaluated(1, 1000, 0.02)
    assert sample != draw_evaluated(2, 1000, 20)
    assert len(draw_evaluated(1, 1000, 1)) == 1
    assert len(draw_evaluated(1, 1000, 1.0)) == 1000


def test_an_evaluation_tests_the_sample_only_and_says_so():
    whole, some = (toy_loop(one_rank(), METHOD, eval_clients=sample, **SETTINGS) for sample in (None, 3))
    records: list[RoundRecord] = []
    for loop in (whole, some):
        loop.fit([AfterRound(lambda record: records.append(record))])
    last_whole, last_some = records[3], records[7]
    for column in ("all_acc_before", "all_loss_before"):
        values, wanted = last_some.per_client[column], last_whole.per_client[column]
        assert [client for client, value in enumerate(values) if not math.isnan(value)] == some.evaluated
        assert values[some.evaluated].tolist() == wanted[some.evaluated].tolist()
    mean = last_some.per_client["all_acc_before"][some.evaluated].mean()
    assert last_some.scalars["all_acc_before"] == pytest.approx(mean)
    assert last_some.scalars["all_clients"] == 3
    assert "all_clients" in some.history.columns()
    assert some.summary()["evaluated_clients"] == 3
    assert "all_clients" not in whole.history.columns()
    assert "evaluated_clients" not in whole.summary()
    assert some.model_sha256() == whole.model_sha256()


def test_a_sample_is_the_same_on_any_number_of_ranks():
    one, three = (toy_summary(world, METHOD, eval_clients=0.5, **SETTINGS) for world in (1, 3))
    assert fingerprint(one) == fingerprint(three)


def test_participants_are_tested_every_n_rounds_and_in_the_last_one():
    records = []
    loop = toy_loop(one_rank(), METHOD, test_every=3, **SETTINGS)
    loop.fit([AfterRound(lambda record: records.append(record))])
    assert ["acc_after" in record.scalars for record in records] == [False, False, True, True]
    assert "acc_after" not in records[0].per_client
    always = toy_summary(1, METHOD, **SETTINGS)
    assert loop.model_sha256() == always["model_sha256"]
    assert loop.summary()["clients_sha256"] == always["clients_sha256"]
    assert loop.summary()["last"]["acc_after"] == always["last"]["acc_after"]


def test_without_tests_no_column_claims_one():
    summary = toy_summary(1, METHOD, test_every=0, **SETTINGS)
    assert "acc_before" not in summary["last"]
    assert "all_acc_after" not in summary["last"]
    assert summary["last"]["all_acc_before"] > 0


@pytest.mark.parametrize("sample", [0, -1, 0.0, 1.5, True, "10"])
def test_a_sample_that_cannot_be_drawn_is_refused(sample):
    with pytest.raises(ConfigError, match=r"eval_clients: .* is not allowed; use a whole number >= 1, a fraction"):
        LoopConfig(eval_clients=sample)
