"""FedALA against numbers worked by hand: the client's own stored model is mixed, with its own weights."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from pfl_lightning.algorithms import FedALA
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.nets import Net
from tests.helpers.scalar import Quadratic, Targets
from tests.helpers.toy import toy_loop
from tests.helpers.visits import memory_of, open_client

CONTRACT = [FedALA(head=["net.body", "net.head"], max_epochs=2, bn_buffers="local")]
LIKE_FEDAVG = [FedALA(eta=0.0, max_epochs=2), FedALA(head=[])]


class Point(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size))


class HeadOnly(Quadratic):
    """½ ‖x − a‖², where x is the head."""

    def build(self, spec):
        self.net = Net(nn.Identity(), Point(spec.num_classes))

    @property
    def x(self) -> Tensor:
        return self.net.head.x


def federation(algorithm: FedALA, targets: list[list[float]], sizes=None, **loop) -> FederatedFabricLoop:
    data = Targets(targets, sizes or [1] * len(targets))
    data.setup(0)
    config = LoopConfig(**{"rounds": 9, "local_epochs": 0, "eval_every": 0, **loop})
    return FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), HeadOnly(0.1, []), algorithm, data, config)


def mix(loop: FederatedFabricLoop, client: int, received: list[float]) -> list[float]:
    """The model the client starts from when the server sends `received`."""
    loop.server.vector.copy_(torch.tensor(received))
    open_client(loop, client)
    loop.algorithm.download(loop.engine.client, loop.server)
    return loop.engine.client.vector.tolist()


def test_by_hand():
    """θ_i = (0, 0), w = (2, −1), a = (1, 0.5), η = 0.25, W = 1: the gradient at w is (1, −1.5).

    W = 1 − 0.25·(1, −1.5)·(2, −1) = (0.5, 0.625), θ̂ = (1, −0.625). The second batch: gradient (0, −1.125),
    W = (0.5, 0.625 − 0.25·1.125) = (0.5, 0.34375), θ̂ = (1, −0.34375).
    """
    loop = federation(FedALA(eta=0.25, max_epochs=2), [[1, 0.5]])
    loop.round()
    assert mix(loop, 0, [2, -1]) == pytest.approx([1, -0.34375])
    assert loop.engine.client.memory["weights"].tolist() == pytest.approx([0.5, 0.34375])
    loop = federation(FedALA(eta=0.25, max_epochs=1), [[1, 0.5]])
    loop.round()
    assert mix(loop, 0, [2, -1]) == pytest.approx([1, -0.625])
    loop = federation(FedALA(eta=1.0, max_epochs=1), [[1, 0.5]])
    loop.round()
    mix(loop, 0, [2, -1])
    assert loop.engine.client.memory["weights"].tolist() == [0, 0]


def test_weights_stay_between_zero_and_one():
    """a = (5, −3) lies beyond w = (2, −1): the gradient at w is (−3, 2), and W would be 1 + 0.25·(6, 2). W = 1 is w.

    a = (−5, 3) lies on the other side: W = 1 − 0.25·(14, 4) would be below 0. W = 0 is the own model.
    """
    for target, weight, model in (([5.0, -3.0], 1.0, [2.0, -1.0]), ([-5.0, 3.0], 0.0, [0.0, 0.0])):
        loop = federation(FedALA(eta=0.25, max_epochs=1), [target])
        loop.round()
        assert mix(loop, 0, [2, -1]) == pytest.approx(model)
        assert loop.engine.client.memory["weights"].tolist() == [weight, weight]


def test_batchnorm_is_in_evaluation_mode_while_weights_learn():
    """Below the head it normalises with its statistics, so W does not depend on which samples share a batch."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedALA(max_epochs=1), rounds=2)
    loop.round()
    client, modes = open_client(loop, 0), []
    client.task.net.body[1].register_forward_pre_hook(lambda norm, _: modes.append(norm.training))
    loop.algorithm.download(client, loop.server)
    assert modes
    assert not any(modes)


def test_later_weights_go_on_from_where_they_were_for_one_epoch():
    """W = (0.5, 0.34375) after the first visit with two epochs, kept; the next mix adds one more, from the same θ_i."""
    loop = federation(FedALA(eta=0.25, max_epochs=2), [[1, 0.5]])
    loop.round()
    loop.server.vector.copy_(torch.tensor([2.0, -1.0]))
    loop.round()
    assert memory_of(loop, 0)["weights"].tolist() == pytest.approx([0.5, 0.34375])
    assert loop.store.states[0]["personal"].tolist() == pytest.approx([1, -0.34375])
    # w − θ_i = (2, −1) again: θ̂ = θ_i + W (w − θ_i) = (2, −0.6875); gradient (1, −1.1875); W = (0, 0.046875)
    assert mix(loop, 0, [3, -1.34375]) == pytest.approx([1, -0.34375 - 0.046875])


def test_each_client_mixes_its_own_model():
    """Two clients with a = (1, 0.5) and (−4, 0): what they trained last, not one model for both, is mixed."""
    loop = federation(FedALA(eta=0.0), [[1, 0.5], [-4, 0]], local_epochs=1)
    loop.round()
    assert loop.store.states[0]["personal"].tolist() == pytest.approx([0.1, 0.05])
    assert loop.store.states[1]["personal"].tolist() == pytest.approx([-0.4, 0.0])
    loop = federation(FedALA(eta=1e9, max_epochs=1), [[1, 0.5], [-4, 0]], local_epochs=1)
    loop.round()
    assert mix(loop, 0, [2, 2]) == pytest.approx([0.1, 0.05])  # weights fall to 0: all its own
    assert mix(loop, 1, [2, 2]) == pytest.approx([-0.4, 0.0])


def test_the_first_time_ends_when_losses_settle_and_never_runs_away(monkeypatch):
    """a = w is reached at once: eleven equal losses. With a threshold of 0 only `max_epochs` ends it."""
    counts = []
    for algorithm in (FedALA(eta=0.25, threshold=0.1), FedALA(eta=0.25, threshold=0.0, max_epochs=40)):
        loop = federation(algorithm, [[1, 0.5]])
        loop.round()
        calls = []
        gradient = loop.engine.client.compute_gradient
        monkeypatch.setattr(
            loop.engine.client, "compute_gradient", lambda *a, g=gradient, c=calls: c.append(1) or g(*a)
        )
        mix(loop, 0, [1, 0.5])
        counts.append(len(calls))
    assert counts == [11, 40]


def test_only_the_last_ten_losses_must_settle(monkeypatch):
    """A first loss of 100 and ones ever after: eleven epochs are enough, since the first has left the window."""
    loop = federation(FedALA(eta=0.25), [[1, 0.5]])
    loop.round()
    losses: list[float] = []
    gradient = loop.engine.client.compute_gradient

    def scripted(*args):
        gradient(*args)
        losses.append(1.0 if losses else 100.0)
        return torch.tensor(losses[-1])

    monkeypatch.setattr(loop.engine.client, "compute_gradient", scripted)
    mix(loop, 0, [1, 0.5])
    assert len(losses) == 11


def test_ten_losses_in_a_row_must_settle(monkeypatch):
    """Fifteen losses that jump and ones ever after: 25 epochs."""
    loop = federation(FedALA(eta=0.25), [[1, 0.5]])
    loop.round()
    losses: list[float] = []
    gradient = loop.engine.client.compute_gradient

    def scripted(*args):
        gradient(*args)
        losses.append(1.0 if len(losses) >= 15 else 10.0 * (len(losses) % 2))
        return torch.tensor(losses[-1])

    monkeypatch.setattr(loop.engine.client, "compute_gradient", scripted)
    mix(loop, 0, [1, 0.5])
    assert len(losses) == 25


def test_a_client_never_drawn_takes_the_global_model():
    loop = federation(FedALA(), [[1, 0.5]])
    assert mix(loop, 0, [2, -1]) == [2, -1]
    assert "weights" not in loop.engine.client.memory


def test_statistics_and_the_lower_layers_come_from_the_server():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedALA(head=["net.body", "net.head"]), rounds=2)
    loop.round()
    open_client(loop, 0)
    loop.algorithm.download(loop.engine.client, loop.server)
    statistics = slice(loop.server.layout.num_parameters, None)
    assert torch.equal(loop.engine.client.vector[statistics], loop.server.vector[statistics])
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedALA(), rounds=2)
    loop.round()
    open_client(loop, 0)
    loop.algorithm.download(loop.engine.client, loop.server)
    head = loop.algorithm.in_head(loop.engine.client)
    assert torch.equal(loop.engine.client.vector[~head], loop.server.vector[~head])
    assert not torch.equal(loop.engine.client.vector[head], loop.server.vector[head])


def test_a_share_of_the_samples_is_used():
    """0.8 of client 3's 30 samples are 24, the same ones in each epoch."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedALA())
    open_client(loop, 3)
    one, other = ([y for _, y in loop.engine.client.batches("mix", 0.8)] for _ in range(2))
    assert sum(map(len, one)) == 24
    assert torch.equal(torch.cat(one), torch.cat(other))


def test_weights_learn_from_that_share_alone():
    """Eight samples in batches of two, share 0.5: two batches, so two steps of W as in `test_by_hand`, not four."""
    loop = federation(FedALA(eta=0.25, share=0.5, max_epochs=1), [[1, 0.5]], sizes=[8], batch_size=2)
    loop.round()
    assert mix(loop, 0, [2, -1]) == pytest.approx([1, -0.34375])


def test_a_client_without_samples_takes_the_global_model():
    loop = federation(FedALA(), [[1, 0.5]])
    loop.round()
    loop.server.vector.copy_(torch.tensor([2.0, -1.0]))
    open_client(loop, 0)
    loop.engine.client.train_indices = loop.engine.client.train_indices[:0]
    loop.algorithm.download(loop.engine.client, loop.server)
    assert loop.engine.client.vector.tolist() == [2, -1]


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"share: 0 is not allowed; use a number above 0 and up to 1"):
        FedALA(share=0)
    with pytest.raises(ConfigError, match=r"max_epochs: 0 is not allowed; use a whole number >= 1"):
        FedALA(max_epochs=0)
    with pytest.raises(ConfigError, match=r"eta: -1 is not allowed; use a number >= 0"):
        FedALA(eta=-1)
