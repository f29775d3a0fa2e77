"""FedPURIN against a plain NumPy computation and numbers worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from pfl_lightning.algorithms import FedPURIN
from pfl_lightning.foundation.errors import ConfigError, DivergedError
from pfl_lightning.metrics import ledger
from pfl_lightning.model import masks
from tests.helpers.plain_critical import START, TARGETS, assert_equal_to_plain, two_tensor_loop
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import toy_loop
from tests.helpers.traffic import MIB, round_bytes, traffic_loop
from tests.helpers.visits import memory_of, open_client

CONTRACT = [
    FedPURIN(tau=0.5, beta=12),
    FedPURIN(tau=0.3, beta=5, gradient="update", hessian=True, bn_layers="share", bn_buffers="average"),
]


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.mark.parametrize(
    ("world", "participation", "gradient", "hessian"),
    [
        (1, 1.0, "last_batch", False),
        (1, 0.67, "last_batch", True),
        (1, 0.67, "update", True),
        (2, 0.67, "last_batch", False),
        (2, 1.0, "update", False),
    ],
)
def test_three_clients_against_numpy(world: int, participation: float, gradient: Any, hessian: bool) -> None:
    """Nine rounds over β = 5: sparse global models (zeros counted), starting models and masks, drawn or not."""
    exact = gradient == "last_batch"
    assert_equal_to_plain(
        FedPURIN(tau=0.4, beta=5, gradient=gradient, hessian=hessian),
        participation,
        world,
        9,
        tau=0.4,
        beta=5,
        sparse=True,
        exact_gradient=exact,
        hessian=hessian,
    )


def test_the_last_batchs_gradient_is_the_one_before_the_last_step() -> None:
    """Two steps of lr 0.1 from x₀: the last gradient is x₁ − a = 0.9 (x₀ − a); θ is x₂ = a + 0.81 (x₀ − a)."""
    loop = two_tensor_loop(one_rank(), FedPURIN(), 1.0)
    loop.round()
    for client in range(3):
        a, x0 = torch.tensor(TARGETS[client]), torch.tensor(START)
        score = (0.9 * (x0 - a) * (a + 0.81 * (x0 - a))).abs()
        top = set(score[:5].topk(2).indices.tolist()) | {5 + j for j in score[5:].topk(2).indices.tolist()}
        mask = masks.unpack(loop.store.states[client]["mask"], 9)
        assert set(mask.nonzero().flatten().tolist()) == top


def test_what_nobody_finds_critical_is_zero_on_the_server() -> None:
    loop = toy_loop(one_rank(), FedPURIN(tau=0.1), rounds=2, eval_every=0)
    loop.fit()
    layout, union = loop.server.layout, torch.zeros(loop.server.layout.size, dtype=torch.bool)
    for state in loop.store.states.values():
        union |= masks.unpack(state["mask"], layout.size)
    weights = layout.where(["net.body.0.weight", "net.head.weight"])
    assert (loop.server.vector[weights & ~union] == 0).all()
    assert (weights & ~union).any()
    assert (loop.server.vector[weights & union] != 0).all()


@pytest.mark.parametrize("bn_layers", ["local", "share"])
def test_batch_norm_stays_with_the_client_unless_shared(bn_layers: Any) -> None:
    loop = toy_loop(one_rank(), FedPURIN(tau=0.5, bn_layers=bn_layers), rounds=3, eval_every=0)
    loop.fit()
    layout = loop.server.layout
    norm = masks.by_type(loop.engine.client.task, layout, nn.BatchNorm1d)
    affine = norm & (torch.arange(layout.size) < layout.num_parameters)
    assert torch.equal(loop.server.vector[norm & ~affine], loop.server.initial[norm & ~affine])
    unmoved = torch.equal(loop.server.vector[affine], loop.server.initial[affine])
    assert unmoved == (bn_layers == "local")
    for state in loop.store.states.values():
        mask = masks.unpack(state["mask"], layout.size)
        assert int(mask[affine].sum()) == (16 if bn_layers == "local" else 8)


def test_the_cutoff_leaves_places_empty() -> None:
    """With a cutoff above every score nothing is critical: all send zeros, the next start is zero, BatchNorm apart."""
    loop = toy_loop(one_rank(), FedPURIN(cutoff=1e9), rounds=1, eval_every=0)
    loop.fit()
    shared = ~masks.by_type(loop.engine.client.task, loop.server.layout, nn.BatchNorm1d)
    assert (loop.server.vector[shared] == 0).all()
    assert "partners" in memory_of(loop, 0)
    assert not masks.unpack(loop.store.states[0]["mask"], 115)[shared].any()


def test_gradients_in_16_bits_below_3e_8_are_never_critical() -> None:
    theta, grad = torch.tensor([10.0, 10.0, 10.0, 0.1]), torch.tensor([1e-5, 2.9e-8, -2.9e-8, -4e-3])
    client: Any = SimpleNamespace(theta=theta, grad=grad)
    start = theta.clone()
    exact = FedPURIN().score(client, start)
    torch.testing.assert_close(exact, torch.tensor([1e-4, 2.9e-7, 2.9e-7, 4e-4]))
    rounded = FedPURIN(half_gradient=True).score(client, start)
    assert rounded[1:3].tolist() == [0.0, 0.0]
    assert exact[1] > FedPURIN().cutoff, "the exact gradient would make it critical"
    torch.testing.assert_close(rounded[[0, 3]], exact[[0, 3]], rtol=1e-2, atol=0)
    torch.testing.assert_close(
        FedPURIN(gradient="update", half_gradient=True).score(client, start + 1e-6),
        FedPURIN(gradient="update").score(client, start + 1e-6),
    )


def test_sparse_models_are_tested_on_request_and_change_nothing_else() -> None:
    dense, sparse = (
        toy_loop(one_rank(), FedPURIN(test_sparse=choice), rounds=3, eval_every=1).fit() for choice in (False, True)
    )
    assert dense["model_sha256"] == sparse["model_sha256"]
    assert dense["clients_sha256"] == sparse["clients_sha256"]
    assert dense["last"]["loss_before"] == sparse["last"]["loss_before"]
    assert dense["last"]["loss_after"] != sparse["last"]["loss_after"]


@pytest.mark.parametrize("test_sparse", [False, True])
def test_the_model_after_training_has_zeros_only_if_it_is_tested_sparse(test_sparse: bool) -> None:
    loop = toy_loop(one_rank(), FedPURIN(test_sparse=test_sparse), rounds=1, eval_every=0)
    open_client(loop, 0)
    client = loop.engine.client
    loop.algorithm.setup(client, loop.server)
    loop.algorithm.fit(client, loop.server)
    trained, rest = client.vector.clone(), ~client.mask
    sent = loop.algorithm.sent_model(client)
    assert torch.equal(client.vector, trained), "what is sent is a copy"
    assert rest.any()
    assert (sent[rest] == 0).all()
    assert (trained[rest] == 0).all() == test_sparse


def test_averaged_statistics_are_sent_as_they_are() -> None:
    loop = toy_loop(one_rank(), FedPURIN(bn_buffers="average"), rounds=1, eval_every=0)
    open_client(loop, 0)
    client, layout = loop.engine.client, loop.server.layout
    loop.algorithm.setup(client, loop.server)
    loop.algorithm.fit(client, loop.server)
    norm = masks.by_type(client.task, layout, nn.BatchNorm1d)
    places = int((~norm[: layout.num_parameters]).sum())
    critical = ledger.sparse_bytes(int((client.mask & ~norm).sum()), places)
    assert loop.algorithm.up_bytes(client) == critical + 4 * (layout.size - layout.num_parameters)


def test_a_visit_without_training_takes_no_gradient_of_another_client() -> None:
    """local_epochs 0: g = 0, nothing is critical for anybody, on any number of ranks."""
    loop = toy_loop(one_rank(), FedPURIN(), rounds=1, local_epochs=0, eval_every=0)
    loop.engine.client.grad.fill_(1.0)
    loop.fit()
    assert all(int(masks.unpack(s["mask"], 115)[:99].sum()) == 16 for s in loop.store.states.values())


def test_a_diverged_client_is_named_on_every_rank() -> None:
    def work(fabric: Fabric) -> str:
        loop = two_tensor_loop(fabric, FedPURIN(tau=0.2), 1.0)
        loop.data.samples.y[:3] = torch.nan
        with pytest.raises(DivergedError) as error:
            loop.round()
        return str(error.value)

    for message in run_on_ranks(work, 2):
        assert message.startswith("client 0 diverged in round 1")


@pytest.mark.parametrize(("dataset", "up"), [("fmnist", "2.49"), ("cifar10", "2.50"), ("cifar100", "10.03")])
def test_traffic_before_and_after_beta(dataset: str, up: str) -> None:
    """Up: the critical half, and a bit for each parameter but BatchNorm's, which are always local.

    Down: first a dense model. Then, before β = 1 is over, the group's half, whose places the client knows; and always
    what the global model has elsewhere with a bit for each place, or 4-byte indices, or dense, whatever is smallest.
    """
    loop = traffic_loop(FedPURIN(tau=0.5, beta=1, cutoff=0.0), dataset)
    sizes = [p.numel() for p in loop.engine.client.task.parameters() if p.dim() > 1] + [loop.data.spec.num_classes]
    size, critical = sum(sizes), sum(n // 2 for n in sizes)
    upload = 2 * (4 * critical + (size + 7) // 8)
    assert f"{upload / MIB / 2:.2f}" == up
    assert round_bytes(loop) == (upload, 2 * 4 * size)
    for group in (4 * critical, 0):
        expected = 0
        for client in range(2):
            mask = masks.unpack(loop.store.states[client]["mask"], loop.server.layout.size)
            values = int((loop.server.vector[~mask] != 0).sum())
            rest = size - critical
            expected += group + min(4 * rest, 4 * values + (rest + 7) // 8, 8 * values)
        assert round_bytes(loop) == (upload, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, "tau: 0.0 is not allowed; use a number above 0 and up to 1"),
        ({"beta": 0}, "beta: 0 is not allowed; use a whole number >= 1"),
        ({"gradient": "exact"}, "gradient: 'exact' is not allowed; use last_batch or update"),
        ({"bn_layers": "global"}, "bn_layers: 'global' is not allowed; use local or share"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        FedPURIN(**settings)
    assert str(error.value) == message
