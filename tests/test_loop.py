"""The loop: the numbers it reports, its callbacks, and the mistakes it notices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning import loop as loop_module
from pfl_lightning.algorithms import FedAvg, FedOBP, Local
from pfl_lightning.callback import Callback
from pfl_lightning.engine.cohort import draw_cohort
from pfl_lightning.foundation.errors import ConfigError, DivergedError, RunError
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.metrics.record import RoundRecord
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import TEST_SIZE, TRAIN_SIZES, ToyData, ToyNet, toy_loop


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def test_a_record_has_every_column_in_the_order_of_the_table():
    loop = toy_loop(one_rank(), FedAvg(), rounds=2, eval_every=2)
    first, second = loop.round(), loop.round()
    columns = loop.history.columns()
    assert list(first.scalars) == [c for c in columns if not c.startswith("all_")]
    assert list(second.scalars) == columns
    assert len(second.per_client["acc_before"]) == 7


def test_what_a_round_counts_by_hand():
    """All seven clients, two epochs: 2·Σn samples; a model of P + BN floats goes up and down seven times."""
    loop = toy_loop(one_rank(), FedAvg(), local_epochs=2)
    record = loop.round()
    size = 6 * 8 + 8 + 2 * 8 + 8 * 3 + 3 + 2 * 8
    assert loop.server.layout.size == size
    assert record.scalars["samples"] == 2 * sum(TRAIN_SIZES)
    assert record.scalars["up_bytes"] == record.scalars["down_bytes"] == 7 * 4 * size
    assert record.scalars["personal_share"] == 0
    assert 0 < sum(record.phases.values()) <= record.scalars["seconds"]


def test_local_statistics_do_not_travel():
    loop = toy_loop(one_rank(), FedAvg(bn_buffers="local"))
    assert loop.round().scalars["up_bytes"] == 7 * 4 * loop.server.layout.num_parameters


def test_before_is_the_received_model_and_after_the_trained_one():
    """With no epochs, both are the same; with training, the first round's `before` is the initial model's accuracy."""
    idle = toy_loop(one_rank(), FedAvg(), local_epochs=0).round()
    assert idle.scalars["acc_before"] == idle.scalars["acc_after"]
    loop = toy_loop(one_rank(), FedAvg())
    loop.engine.client.vector.copy_(loop.server.initial)
    correct = 0
    for client in range(7):
        loop.engine.client.load_state(client, 1, None, loop.server.initial)
        correct += int(loop.engine.client.test()[0])
    record = loop.round()
    assert record.scalars["acc_before_pooled"] == pytest.approx(correct / (7 * TEST_SIZE))
    assert record.scalars["loss_after"] < record.scalars["loss_before"]


def test_all_after_is_each_clients_latest_training():
    loop = toy_loop(one_rank(), FedAvg(), participation=0.4, rounds=4, eval_every=4)
    latest: dict[int, float] = {}
    for round_ in range(1, 5):
        record = loop.round()
        cohort = draw_cohort(1, round_, 7, 0.4)
        latest |= dict(zip(cohort, record.per_client["acc_after"], strict=True))
    assert record.scalars["all_acc_after"] == pytest.approx(sum(latest.values()) / len(latest))


def test_evaluations_do_not_change_the_best_of_visits():
    """pFedSOP's Table II counts participations only. `eval_every` does not change the models, so it must not count."""
    summaries = [
        toy_loop(one_rank(), FedOBP(), participation=0.4, rounds=4, eval_every=every).fit() for every in (0, 1)
    ]
    assert summaries[0]["clients_sha256"] == summaries[1]["clients_sha256"]
    assert summaries[0]["best_per_client_visits"] == summaries[1]["best_per_client_visits"]
    assert not summaries[0]["best_per_client_evaluations"]
    assert (
        summaries[1]["best_per_client_evaluations"]["acc_before"]
        != summaries[1]["best_per_client_visits"]["acc_before"]
    )


def test_the_global_model_is_evaluated_beside_the_personal_ones():
    record = toy_loop(one_rank(), Local(), rounds=3, eval_every=3)
    for _ in range(3):
        last = record.round()
    assert last.scalars["all_loss_before"] < last.scalars["all_global_loss"]


def test_a_diverged_client_is_named():
    loop = toy_loop(one_rank(), FedAvg())
    loop.engine.client.task.make_optimizer = lambda p: torch.optim.SGD(p, lr=1e30)
    with pytest.raises(DivergedError, match=r"^client 0 \(and 6 more\) diverged in round 1: .* smaller learning rate"):
        loop.round()


def test_ranks_that_start_differently_are_noticed():
    class Careless(ToyNet):
        def __init__(self, spec):
            super().__init__(spec)
            torch.nn.init.constant_(self.head.bias, torch.distributed.get_rank())

    def work(fabric: Fabric) -> str:
        from pfl_lightning.tasks import Classification

        data = ToyData()
        data.setup(0)
        try:
            FederatedFabricLoop(fabric, Classification(Careless), FedAvg(), data, LoopConfig(rounds=1))
        except RunError as error:
            return str(error)
        return "not noticed"

    for text in run_on_ranks(work, 2):
        assert text.startswith("the initial model, which task.build must make with")
        assert text.endswith("differs between rank 0 and rank 1")


def test_callbacks_are_told_of_each_round_and_of_the_end_in_their_order():
    loop = toy_loop(one_rank(), FedAvg(), rounds=2)
    seen: list[tuple[str, object]] = []

    class Listener(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_round_end(self, record: RoundRecord) -> None:
            assert record.round == loop.server.round
            seen.append((self.name, record.round))

        def on_fit_end(self, summary: dict[str, Any]) -> None:
            seen.append((self.name, summary["model_sha256"]))

    sha = loop.fit([Listener("a"), Listener("b"), Callback()])["model_sha256"]
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", sha), ("b", sha)]


def test_the_state_of_a_client_moves_with_it():
    """On three ranks, clients change ranks; each state lives on exactly one of them, the one that all ranks know."""

    def work(fabric: Fabric) -> tuple[list[int], list[int]]:
        loop = toy_loop(fabric, FedOBP(quantile=0.5), participation=0.6, rounds=6)
        loop.fit()
        return sorted(loop.store.states), loop.store.home

    answers = run_on_ranks(work, 3)
    homes = answers[0][1]
    for rank, (held, home) in enumerate(answers):
        assert home == homes
        assert held == [client for client, where in enumerate(homes) if where == rank]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 0),
        ("participation", 0.0),
        ("participation", 1.1),
        ("batch_size", 0),
        ("eval_every", -1),
        ("local_epochs", -1),
    ],
)
def test_bad_settings_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key}: {value} is not allowed; use "):
        LoopConfig(**{key: value})


@pytest.mark.parametrize("key", ["rounds", "clients_per_step", "test_every", "batch_size"])
@pytest.mark.parametrize("value", [2.5, True, "2", None])
def test_python_gets_a_line_about_numbers_that_are_not_whole(key, value):
    with pytest.raises(ConfigError, match=f"{key}: .* is not allowed; use a whole number >= "):
        LoopConfig(**{key: value})


def test_python_gets_a_line_about_a_mode_that_does_not_exist():
    with pytest.raises(ConfigError, match="compile_mode: 'fast' is not allowed; use default"):
        LoopConfig(compile="inductor", compile_mode="fast")  # type: ignore[arg-type]


def test_the_phases_of_a_round_by_hand(monkeypatch):
    """Started at 10. Until 14 a visit (fit 2, test 1), the rest is aggregation; until 20 metrics, 5 of them waiting."""
    times, comm = iter([10.0, 14.0, 20.0, 21.0]), SimpleNamespace(waited=100.0)
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: next(times))
    clock = loop_module._Clock(comm)  # type: ignore[arg-type]
    clock.lap("aggregate", {"fit": 2.0, "test": 1.0})
    comm.waited += 5.0
    clock.lap("metrics")
    assert clock.phases == {"fit": 2.0, "test": 1.0, "aggregate": 1.0, "wait": 5.0, "metrics": 1.0}
    assert clock.total() == 11.0


def test_bf16_trains_and_leaves_float32_models_and_states():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"), FedOBP(quantile=0.5), rounds=3)
    record = loop.round()
    assert record.scalars["loss_after"] < record.scalars["loss_before"]
    loop.fit()
    assert loop.server.vector.dtype == torch.float32
    for state in loop.store.states.values():
        assert {t.dtype for t in state.values() if t.is_floating_point()} == {torch.float32}
    plain = toy_loop(one_rank(), FedOBP(quantile=0.5), rounds=3)
    plain.fit()
    assert not torch.equal(loop.server.vector, plain.server.vector), "it was float32"
    torch.testing.assert_close(loop.server.vector, plain.server.vector, rtol=0.1, atol=0.05)


def test_weights_take_time_linear_in_the_clients():
    """The total was once summed up again for every client: half a second with 10 240 of them."""

    class Counted(list[int]):
        reads = 0

        def __iter__(self) -> Any:
            type(self).reads += 1
            return super().__iter__()

    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedAvg())
    assert loop._weights([0, 2, 5], Counted([1, 2, 5])) == {0: 0.125, 2: 0.25, 5: 0.625}
    assert Counted.reads == 2
