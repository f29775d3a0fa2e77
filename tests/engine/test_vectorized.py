"""Clients that are trained several at a time end as they do one by one, up to rounding."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import Ditto, FedAvg, FedBN, FedOBP, Floco, FlocoPlus, PFedFDA
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.data.federated import DataSpec
from pfl_lightning.engine.lockstep import LockstepClient
from pfl_lightning.engine.vectorized import Vectorized
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.model.local_training import LocalTraining
from pfl_lightning.nets import CNN, Net
from pfl_lightning.tasks import Classification
from tests.algorithms.test_contract import ALGORITHMS, name
from tests.helpers.lit_runs import lit_loop
from tests.helpers.outcome import assert_close, outcome
from tests.helpers.toy import PlainNet, ToyData, ToyNet, disturbed_summary, fingerprint, toy_loop, toy_summary
from tests.helpers.visits import live_models

SETTINGS: dict[str, Any] = {"rounds": 3, "participation": 0.9, "eval_every": 3, "net": PlainNet}
REFUSED = (Floco, FlocoPlus, FedBN)  # nets that draw random numbers, and a method that needs BatchNorm
VECTORISED = [algorithm for algorithm in ALGORITHMS if not isinstance(algorithm, REFUSED)]


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.mark.parametrize("algorithm", VECTORISED, ids=name)
def test_four_at_a_time_give_what_one_by_one_gives(algorithm):
    """Six of seven unequal clients, four and then two; their last batches have 4, 6, 8 or 9 samples."""
    together = outcome(1, algorithm, clients_per_step=4, **SETTINGS)
    assert_close(together, outcome(1, algorithm, **SETTINGS))


@pytest.mark.parametrize("algorithm", [FedAvg(), FedOBP(quantile=0.8), Ditto()], ids=name)
def test_on_two_ranks(algorithm):
    assert_close(outcome(2, algorithm, clients_per_step=2, **SETTINGS), outcome(1, algorithm, **SETTINGS))


@pytest.mark.parametrize("world", [1, 2])
def test_a_round_that_is_given_up_has_not_happened(world):
    threads = threading.active_count()
    settings = {**SETTINGS, "clients_per_step": 3, "participation": 0.6, "rounds": 2}
    summary, stops = disturbed_summary(world, FedOBP(quantile=0.5), world - 1, [2, 9, 23, 40], **settings)
    assert stops >= 3
    assert fingerprint(summary) == fingerprint(toy_summary(world, FedOBP(quantile=0.5), **settings))
    assert threading.active_count() == threads


def counting(algorithm: Algorithm, **config: Any) -> tuple[list[list[int]], int]:
    """The rows of each group whose gradients were computed at once in a round, and how many were computed alone."""
    loop = toy_loop(one_rank(), algorithm, **{**SETTINGS, "participation": 1.0, "eval_every": 0, **config})
    groups: list[list[int]] = []
    alone = 0
    together = loop.engine._together
    for client in live_models(loop):
        plain = client.backpropagate

        def one(*args: Any, plain: Any = plain) -> Tensor:
            nonlocal alone
            alone += 1
            return plain(*args)

        client.backpropagate = one  # type: ignore[method-assign]
    loop.engine._together = lambda rows, batches: groups.append(rows) or together(rows, batches)
    loop.round()
    return groups, alone


class StepByStep(FedAvg):
    """FedAvg with a loop of its own, which asks for one gradient after the other."""

    def fit(self, client: Any, server: Any) -> None:
        client.start_training()
        optimizer = client.fresh_optimizer()
        for batch in client.iter_batches():
            loss = client.compute_gradient(batch)
            optimizer.step()
            client.record_step(loss, batch)


def test_what_is_computed_at_once():
    """Sizes 30, 25, 17, 12 | 9, 8, 4; one epoch in batches of 8: 8 8 8 6 | 8 8 9 | 8 9 | 8 4, then 9 | 8 | 4."""
    groups, alone = counting(StepByStep(), clients_per_step=4, local_epochs=1)
    assert groups == [[0, 1, 2, 3], [0, 1]]
    assert alone == 2 + 2 + 1 + 3


def test_groups_need_not_be_neighbours():
    """Sizes 30, 25, 17 in two epochs of batches of 10: 10 10 10 10 … | 10 10 5 10 … | 10 7 10 7."""
    groups, _ = counting(StepByStep(), clients_per_step=3, batch_size=10, local_epochs=2)
    assert groups[:3] == [[0, 1, 2], [0, 1], [0, 2]]
    settings = {**SETTINGS, "batch_size": 10}
    assert_close(outcome(1, StepByStep(), clients_per_step=3, **settings), outcome(1, FedAvg(), **settings))


def test_a_loss_of_the_algorithms_own_is_computed_one_by_one():
    groups, alone = counting(PFedFDA(), clients_per_step=4, local_epochs=1)
    assert not groups
    assert alone


class Tiny(Net):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(1, 8), nn.ReLU()), nn.Linear(8, 3))


def lanes(net: Any, count: int = 3, data: ToyData | None = None, fabric: Fabric | None = None) -> Vectorized:
    """An engine with random live models in training mode."""
    data, fabric = data or ToyData(), fabric or one_rank()
    data.setup(0)
    torch.manual_seed(0)
    task = Classification(net)
    task.build(data.spec)

    def make(task: Classification, memory: tuple[Tensor, Tensor]) -> LockstepClient:
        return LockstepClient(task, data, LocalTraining(), fabric, 0, memory=memory)

    engine = Vectorized(count, task, make, FedAvg(), Comm(fabric), channels_last=True)
    for client in engine.clients:
        client.vector.copy_(torch.randn(engine.layout.size) * 0.1)
        client.start_training()
    return engine


class Pictures(ToyData):
    spec = DataSpec((1, 28, 28), 3)

    def load(self):
        samples = super().load()
        noise = torch.Generator().manual_seed(0)
        return samples._replace(x=torch.randn(len(samples.y), 1, 28, 28, generator=noise))


class Small(Net):
    def __init__(self, spec: DataSpec) -> None:
        body = nn.Sequential(nn.Conv2d(1, 4, 5, stride=4), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten())
        super().__init__(body, nn.Linear(48, 3))


@pytest.mark.parametrize(("net", "samples"), [(Tiny, ToyData), (Small, Pictures), (CNN, Pictures)])
@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2], [1, 2]])
@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_are_those_of_one_by_one(net, samples, rows, frozen):
    engine = lanes(net, data=samples())
    data, device = engine.clients[0].data, torch.device("cpu")
    batches = {row: data.batch(torch.arange(5 * row, 5 * row + 5), device) for row in rows}
    for client in engine.clients:
        for p in client.task.net.head.parameters():
            p.requires_grad_(not frozen)
            p.grad = None if frozen else p.grad
    expected, losses = {}, {}
    for row, batch in batches.items():
        losses[row] = engine.clients[row].backpropagate(batch)
        expected[row] = engine.clients[row].grad.clone()
    engine.grads.fill_(9.0)
    found = engine.compute_gradients(batches)
    for row in range(3):
        if row in rows:
            off = torch.linalg.norm(engine.clients[row].grad - expected[row])
            assert off <= 1e-5 * torch.linalg.norm(expected[row])
            torch.testing.assert_close(found[row], losses[row])
        else:
            assert (engine.clients[row].grad == 9.0).all()
        for p in engine.clients[row].task.parameters():
            assert (p.grad is None) == (not p.requires_grad)


def test_what_is_live_are_rows_of_one_tensor():
    engine = lanes(Tiny)
    engine.vectors[1].fill_(0.5)
    assert all((p == 0.5).all() for p in engine.clients[1].task.parameters())
    assert not any((p == 0.5).all() for p in engine.clients[0].task.parameters())
    engine.clients[2].theta.fill_(0.25)
    assert (engine.vectors[2] == 0.25).all()


def test_an_error_in_one_client_ends_the_others_and_is_told():
    ended: list[int] = []
    without_power = {1}

    class Failing(FedAvg):
        def fit(self, client: Any, server: Any) -> None:
            try:
                if client.id in without_power:
                    next(iter(client.iter_batches()))
                    raise RuntimeError("client 1 has no power left")
                super().fit(client, server)
            finally:
                ended.append(client.id)

    loop = toy_loop(one_rank(), Failing(), clients_per_step=4, **SETTINGS)
    threads = threading.active_count()
    with pytest.raises(RuntimeError, match="no power left"):
        loop.round()
    assert 1 in ended
    assert threading.active_count() == threads
    assert not loop.store.pending
    without_power.clear()
    assert_close_to_a_fresh_round(loop)


def assert_close_to_a_fresh_round(loop: Any) -> None:
    fresh = toy_loop(one_rank(), FedAvg(), clients_per_step=4, **SETTINGS)
    loop.round()
    fresh.round()
    assert loop.model_sha256() == fresh.model_sha256()


class Noisy(Net):
    """Draws random numbers in a way that no check of its layers can see."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(nn.Linear(6, 4), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand_like(x))


@pytest.mark.parametrize(
    ("net", "algorithm", "text"),
    [
        (
            ToyNet,
            FedAvg(),
            "loop.clients_per_step: net.body.1 (BatchNorm1d) depends on the whole batch, so only 1 is supported",
        ),
        (Noisy, FedAvg(), "loop.clients_per_step: must be 1, because several Noisy cannot be computed together: vmap"),
        (PlainNet, Floco(), "loop.clients_per_step: must be 1, because several PlainNet cannot be computed together: "),
    ],
    ids=["BatchNorm", "random", "Floco"],
)
def test_what_cannot_be_computed_at_once_is_refused(net, algorithm, text):
    with pytest.raises(ConfigError) as error:
        toy_loop(one_rank(), algorithm, clients_per_step=2, net=net)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


def test_not_together_with_teams():
    with pytest.raises(ConfigError, match="clients_per_step: 2 is not allowed; use 1 with ranks_per_client above 1"):
        LoopConfig(clients_per_step=2, ranks_per_client=2)


def test_bf16_is_computed_at_once_too():
    """bfloat16 has three digits: it is the same computation, not the same number."""
    engine = lanes(Tiny, fabric=Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"))
    batch = engine.clients[0].data.batch(torch.arange(8), torch.device("cpu"))
    engine.compute_gradients({0: batch, 1: batch})
    assert engine.grads.dtype == torch.float32
    found = engine.grads[0].clone()
    engine.clients[0].backpropagate(batch)
    exact = lanes(Tiny)
    exact.vectors.copy_(engine.vectors)
    exact.clients[0].backpropagate(batch)
    assert torch.linalg.norm(found - engine.grads[0]) < 0.02 * torch.linalg.norm(found)
    assert not torch.equal(found, exact.grads[0]), "it was float32"


def test_hooks_that_may_set_values_for_one_client_are_refused():
    with pytest.raises(
        ConfigError, match=r"must be 1, because LitHooked\.on_train_start may set values for one client"
    ):
        lit_loop(one_rank(), LitHooked, FedAvg(), ToyData(), clients_per_step=2)


class LitEpochs(LightningModule):
    """The loss depends on the epoch and the step. Unequal clients reach them at different times."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(in_features, num_classes)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = cross_entropy(self.layer(batch[0]), batch[1])
        return loss * (1 + self.current_epoch) * (1 + batch_idx + self.global_step)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class LitHooked(LitEpochs):
    """A hook sets an attribute."""

    def on_train_start(self) -> None:
        self.start = self.layer.weight.detach().clone()


def test_epochs_and_steps_are_those_of_each_client():
    settings = {"participation": 1.0, "batch_size": 4, "local_epochs": 3}
    servers = []
    for count in (1, 4):
        loop = lit_loop(one_rank(), LitEpochs, FedAvg(), ToyData(), clients_per_step=count, **settings)
        loop.fit()
        servers.append(loop.server.vector)
    assert torch.allclose(*servers, rtol=1e-4, atol=1e-6)
