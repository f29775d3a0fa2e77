"""The live client: states in and out, batches, freezing, second models."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.flat_model import FUSED_MULTIPLE
from pfl_lightning.model.local_training import split_batches
from tests.helpers.toy import toy_loop


@pytest.fixture
def client() -> ClientModule:
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedAvg())
    loop.engine.client.load_state(3, 1, None, loop.server.initial)
    return loop.engine.client


def test_it_is_a_lightning_module_with_a_mask_buffer(client):
    assert dict(client.named_buffers())["mask"] is client.mask
    assert client.mask.dtype == torch.bool
    assert len(client.mask) == len(client.vector) == client.layout.size


@pytest.mark.parametrize(("n", "sizes"), [(9, [4, 5]), (8, [4, 4]), (10, [4, 4, 2]), (1, [1]), (5, [5]), (0, [0])])
def test_a_single_last_sample_joins_the_batch_before(n, sizes):
    batches = split_batches(torch.arange(n), 4)
    assert [len(b) for b in batches] == sizes
    assert torch.equal(torch.cat(batches), torch.arange(n))


def seen(client: ClientModule, epoch: str) -> list[list[float]]:
    return [batch[0][:, 0].tolist() for batch in client.batches(epoch)]


def test_batches_depend_on_seed_round_client_and_epoch_only(client):
    first = seen(client, "0")
    torch.rand(7)  # whatever else was drawn
    assert seen(client, "0") == first
    assert seen(client, "1") != first
    initial = client.vector.clone()
    client.load_state(3, 2, None, initial)
    assert seen(client, "0") != first
    client.load_state(3, 1, None, initial)
    assert seen(client, "0") == first
    assert sorted(value for batch in first for value in batch) == sorted(
        client.data.samples.x[client.data.train_indices(3), 0].tolist()
    )


def test_a_state_comes_back_as_it_went(client):
    client.mask[::3] = True
    client.memory["theta"] = client.theta  # a view on purpose: the state must not follow it
    client.vector.copy_(torch.arange(float(len(client.vector))))
    client.visits = 4
    state = client.dump_state()
    kept = client.vector.clone()
    client.vector.fill_(-1.0)
    client.load_state(3, 5, state, torch.zeros_like(kept))
    assert client.visits == 4
    assert torch.equal(client.vector[::3], kept[::3])
    assert not client.vector[1::3].any()
    assert torch.equal(client.memory["theta"], kept[: len(client.theta)])
    client.memory["theta"].fill_(7.0)
    assert not torch.equal(state["memory/theta"], client.memory["theta"]), (
        "an open client must not write into the store"
    )


def test_a_client_that_keeps_nothing_has_a_tiny_state(client):
    assert set(client.dump_state()) == {"visits"}


def test_only_the_chosen_modules_move_even_with_momentum_and_weight_decay(client):
    client.task.make_optimizer = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)
    net = client.task.net
    body, head = ([p.clone() for p in part.parameters()] for part in (net.body, net.head))
    with client.only([net.head]):
        client.train_epochs(2)
    assert all(torch.equal(a, b) for a, b in zip(body, net.body.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(head, net.head.parameters(), strict=True))
    assert all(p.requires_grad for p in net.parameters())
    client.train_epochs(1)
    assert not any(torch.equal(a, b) for a, b in zip(body, net.body.parameters(), strict=True))


def test_only_the_chosen_entries_move(client):
    client.task.make_optimizer = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)
    entries = torch.arange(len(client.theta)) % 2 == 0
    before = client.theta.clone()
    client.train_epochs(2, entries=entries)
    assert torch.equal(client.theta[~entries], before[~entries])
    assert (client.theta[entries] != before[entries]).float().mean() > 0.9


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}])
def test_flat_sgd_has_the_bits_of_sgd_on_each_tensor(client, settings):
    class Plain(torch.optim.SGD):
        """Not exactly SGD, so it is left as it is."""

    assert client.layout.num_parameters > FUSED_MULTIPLE, "a part is fused"
    assert client.layout.num_parameters % FUSED_MULTIPLE, "and a rest is not"
    start, ends = client.vector.clone(), []
    for kind in (torch.optim.SGD, Plain):
        client.vector.copy_(start)
        client.task.make_optimizer = lambda p, kind=kind: kind(p, lr=0.1, **settings)
        optimizer = client.fresh_optimizer()
        assert len(optimizer.param_groups[0]["params"]) == (1 if kind is torch.optim.SGD else 6)
        torch.manual_seed(0)
        client.train_epochs(3)
        ends.append(client.vector.clone())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], start)


def test_a_second_model_trains_in_the_live_module_and_goes_back(client):
    first, second = client.vector.clone(), torch.full_like(client.vector, 0.1)
    with client.swap_in(second):
        client.train_epochs(1)
    assert torch.equal(client.vector, first)
    assert not torch.equal(second, torch.full_like(second, 0.1))


def test_the_gradient_is_that_of_autograd(client):
    batch = next(client.batches("0"))
    client.task.eval()  # no dropout, so that the loss can be computed again
    client.compute_gradient(batch)
    loss = client.task.training_step(batch)
    expected = torch.autograd.grad(loss, list(client.task.parameters()))
    views = client.layout.views(client.grad)
    for name, wanted in zip(dict(client.task.named_parameters()), expected, strict=True):
        torch.testing.assert_close(views[name], wanted)


def test_testing_adds_up_to_the_same_in_any_batch_size(client):
    whole = client.test()
    object.__setattr__(client.local, "test_batch_size", 2)
    parts = client.test()
    assert whole[0] == parts[0]
    assert whole[2] == parts[2] == 5
    assert float(whole[1]) == pytest.approx(float(parts[1]), rel=1e-6)


def test_no_optimizer_is_refused(client):
    client.task.configure_optimizers = lambda: ([], [])
    with pytest.raises(ConfigError, match="one torch optimizer"):
        client.train_epochs()
