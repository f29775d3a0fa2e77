"""Clients that train together (`loop.clients_per_step`): few operations, unequal batches, any optimizer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, Adam
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import FedAvg, FedProx
from pfl_lightning.data.federated import DataSpec, Samples
from pfl_lightning.data.images import ImageData
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.engine.joint_plan import Batches, chunks, list_turns
from pfl_lightning.engine.joint_training import Rows, step_sgd
from pfl_lightning.engine.pausable import PausableCall
from pfl_lightning.engine.stacked_net import _known_layers, stacked_outputs
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.nets import CNN, MLP
from pfl_lightning.tasks import Classification
from tests.helpers.toy import PlainNet, ToyData, toy_loop

FREE = ("_unsafe_view", "empty", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh")
"""Operations that compute nothing and are not marked as views."""


class Images(ImageData):
    """Ten clients with 29 to 38 random images, so that most have a last batch of another size."""

    spec = DataSpec((1, 28, 28), 10)
    mean, std = (0.3,), (0.3,)
    train = np.arange(29, 39)

    def load(self) -> Samples:
        noise, count = torch.Generator().manual_seed(0), int(self.train.sum()) + 10
        x = torch.randint(0, 256, (count, 28, 28, 1), dtype=torch.uint8, generator=noise)
        return Samples(x, torch.randint(0, 10, (count,), generator=noise), 0)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        return Parts(np.arange(len(samples.y)), self.train, np.ones(10, dtype=np.int64))


class Counting(TorchDispatchMode):
    """Counts the operations that compute something."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.overloadpacket.__name__ not in FREE:
            self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def image_loop(net: Any, clients_per_step: int) -> FederatedFabricLoop:
    data = Images(10)
    data.setup(0)
    task = Classification(net, lambda p: SGD(p, lr=0.01, momentum=0.7))
    config = LoopConfig(rounds=1, local_epochs=1, batch_size=8, eval_every=0, clients_per_step=clients_per_step)
    return FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, FedAvg(), data, config, 0)


@pytest.mark.parametrize("net", [MLP, CNN])
def test_ten_clients_take_at_most_eight_operations_per_client_step(net, monkeypatch):
    """29 to 38 samples in batches of 8 are 4 or 5 steps of a client: 43 in all."""
    found: Counter[str] = Counter()
    work, loop = PausableCall._run, image_loop(net, 10)
    fit = loop.engine.fit

    def in_thread(call: Any) -> None:
        with Counting(found):
            work(call)

    def counted(*args: Any) -> None:
        with Counting(found):
            fit(*args)

    monkeypatch.setattr(PausableCall, "_run", in_thread)
    loop.engine.fit = counted
    loop.round()
    assert sum(client.samples_seen for client in loop.engine.clients) == Images.train.sum()
    assert 0 < found.total() / 43 <= 8, found
    alone = image_loop(net, 1)
    alone.round()
    off = torch.linalg.norm(loop.server.vector - alone.server.vector)
    assert off <= 1e-5 * torch.linalg.norm(alone.server.vector - alone.server.initial)


def test_unequal_batches_are_computed_at_once(monkeypatch):
    """Sizes 30, 25, 17, 12 | 9, 8, 4 in batches of 8: 8 8 8 6 | 8 8 9 | 8 9 | 8 4, then 9 | 8 | 4."""
    seen: list[slice] = []
    compute = Rows.compute_gradients
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedAvg(), net=PlainNet, local_epochs=1, clients_per_step=4)
    monkeypatch.setattr(Rows, "compute_gradients", lambda rows, *a: seen.append(rows.where) or compute(rows, *a))
    loop.round()
    assert [(rows.start, rows.stop) for rows in seen] == [(0, 4), (0, 4), (0, 2), (0, 1), (0, 3)]


def test_turns_of_rows_that_are_not_neighbours():
    batches = {row: Batches(np.arange(10 * row, 10 * row + sum(s)), s) for row, s in enumerate([[2, 2], [3], [2, 1]])}
    first, *others = turns = list(list_turns(batches))
    assert first.indices.tolist() == [[0, 1, 0], [10, 11, 12], [20, 21, 20]]
    assert np.allclose(first.weights, [[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0]])
    assert [(t.rows, t.step, t.indices.tolist()) for t in others] == [
        (slice(0, 1), 1, [[2, 3]]),
        (slice(2, 3), 1, [[22]]),
    ]
    assert [len(chunk) for chunk in chunks(turns, 3)] == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.7, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.7, "nesterov": True, "maximize": True},
        {"lr": 0.1, "momentum": 0.7, "dampening": 0.3},
    ],
)
def test_a_step_of_several_models_is_that_of_sgd(options):
    noise = torch.Generator().manual_seed(0)
    ours = torch.randn(3, 5, generator=noise)
    theirs = nn.Parameter(ours.clone())
    optimizer, velocity = SGD([theirs], **options), torch.empty(3, 5)
    every = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False, **options}
    for step in range(3):
        theirs.grad = torch.randn(3, 5, generator=noise)
        step_sgd(ours, theirs.grad, velocity, step == 0, **every)
        optimizer.step()
    torch.testing.assert_close(ours, theirs.detach())


def adam(parameters: Any) -> Adam:
    return Adam(parameters, lr=0.01)


def clipped_loop(algorithm: Algorithm, clients_per_step: int) -> Tensor:
    data = ToyData(7)
    data.setup(1)
    task = Classification(PlainNet, adam, gradient_clip=0.1)
    config = LoopConfig(rounds=2, batch_size=8, eval_every=0, clients_per_step=clients_per_step)
    loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, algorithm, data, config, 1)
    loop.fit()
    return loop.server.vector


def test_other_optimizers_and_clipped_gradients_step_one_by_one():
    alone, together = (clipped_loop(FedProx(mu=0.1), count) for count in (1, 4))
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_method_may_compute_a_gradient_between_a_gradient_and_its_step():
    class Curious(FedAvg):
        def fit(self, client: Any, server: Any) -> None:
            batch = next(client.batches("other"))
            client.train_epochs(on_gradient=lambda: client.compute_gradient(batch))

    loops = [
        toy_loop(Fabric(accelerator="cpu", devices=1), Curious(), net=PlainNet, clients_per_step=count)
        for count in (1, 4)
    ]
    for loop in loops:
        loop.round()
    torch.testing.assert_close(loops[1].server.vector, loops[0].server.vector, rtol=1e-4, atol=1e-5)


class Deep(nn.Module):
    """A net that is not a chain of known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(x + self.one(x).tanh())


@pytest.mark.parametrize(
    ("net", "shape", "known"),
    [
        (nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2)), (2, 8, 8), 4),
        (nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3)), (2, 6, 6), 3),
        (nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)), (5, 6), 3),
        (Deep(), (6,), None),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()), (2, 4, 4), None),
    ],
)
def test_stacked_outputs_are_those_of_each_net(net, shape, known):
    noise = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(3, *p.shape, generator=noise) for name, p in net.named_parameters()}
    x = torch.randn(3, 4, *shape, generator=noise)
    layers = _known_layers(net)
    assert (layers and len(layers)) == known
    found = stacked_outputs(net, tensors, x)
    for row in range(3):
        own = functional_call(net, {name: tensor[row] for name, tensor in tensors.items()}, (x[row],))
        torch.testing.assert_close(found[row], own, rtol=1e-4, atol=1e-5)
