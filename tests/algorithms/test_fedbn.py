"""FedBN: every BatchNorm tensor stays with its client, found by type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from pfl_lightning.algorithms import FedBN
from pfl_lightning.data.federated import DataSpec
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model import masks
from pfl_lightning.model.layout import Layout
from pfl_lightning.nets import Net, ResNet18
from tests.helpers.toy import TRAIN_SIZES, PlainNet, toy_loop
from tests.helpers.visits import open_client

CONTRACT = [FedBN()]


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def test_all_batchnorm_tensors_of_resnet18_are_personal():
    """20 BatchNorm layers, shortcuts included, with 4 800 channels: 4 tensors each."""
    from pfl_lightning.tasks import Classification

    task = Classification(ResNet18)
    task.build(DataSpec((3, 32, 32), 10))
    layout = Layout.of(task)
    personal = masks.by_type(task, layout, nn.modules.batchnorm._BatchNorm)
    assert int(personal.sum()) == 4 * 4800
    assert sum(bool(personal[span.start]) for span in layout.spans) == 4 * 20


def test_only_batchnorm_stays(monkeypatch):
    """The mean of what clients upload, computed here, is the server's model; BatchNorm stays initial there."""
    loop = toy_loop(one_rank(), FedBN())
    uploads = []
    upload = FedBN.upload
    monkeypatch.setattr(FedBN, "upload", lambda *args: uploads.append(upload(*args)) or uploads[-1])
    loop.round()
    norm = masks.by_type(loop.engine.client.task, loop.engine.client.layout, nn.BatchNorm1d)
    assert int(norm.sum()) == 4 * 8
    weights = np.array([u.weight for u in uploads])
    mean = weights @ np.stack([u.values["vector"].double().numpy() for u in uploads])
    assert np.allclose(loop.server.vector[~norm], mean[~norm.numpy()], atol=1e-6)
    assert torch.equal(loop.server.vector[norm], loop.server.initial[norm])
    for u in uploads:
        open_client(loop, u.client)
        loop.algorithm.personalize(loop.engine.client, loop.server)
        assert torch.equal(loop.engine.client.vector[norm], u.values["vector"][norm])
        assert torch.equal(loop.engine.client.vector[~norm], loop.server.vector[~norm])
    assert loop.history.up_bytes == loop.history.down_bytes == 7 * 4 * (115 - 32)


def test_a_client_never_drawn_has_statistics_of_its_own_data():
    """Mean over batches of their mean and (unbiased) variance at the first layer's outputs, computed with NumPy."""
    loop = toy_loop(one_rank(), FedBN(), participation=0.3)
    loop.round()
    client = max((c for c in range(7) if c not in loop.store.states), key=lambda c: TRAIN_SIZES[c])
    open_client(loop, client)
    loop.algorithm.personalize(loop.engine.client, loop.server)
    body = loop.engine.client.task.net.body
    weight, bias = body[0].weight.detach().numpy(), body[0].bias.detach().numpy()
    outputs = [x.numpy() @ weight.T + bias for x, _ in loop.engine.client.batches("statistics")]
    assert len(outputs) > 1
    assert np.allclose(body[1].running_mean, np.mean([o.mean(0) for o in outputs], axis=0), atol=1e-5)
    assert np.allclose(body[1].running_var, np.mean([o.var(0, ddof=1) for o in outputs], axis=0), atol=1e-5)
    assert torch.equal(body[1].weight, torch.ones(8))
    assert body[1].momentum == 0.1


class DropoutFirst(Net):
    def __init__(self, spec: DataSpec) -> None:
        body = nn.Sequential(nn.Dropout(0.5), nn.Linear(spec.shape[0], 8), nn.BatchNorm1d(8))
        super().__init__(body, nn.Linear(8, spec.num_classes))


def test_dropout_is_off_while_statistics_are_estimated():
    """The mean of one batch, computed with NumPy on inputs that nothing was dropped from."""
    loop = toy_loop(one_rank(), FedBN(), net=DropoutFirst)
    client = open_client(loop, 3)
    loop.algorithm.personalize(client, loop.server)
    _, linear, norm = client.task.net.body
    weight, bias = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    means = [(x.numpy() @ weight.T + bias).mean(0) for x, _ in client.batches("statistics")]
    assert np.allclose(norm.running_mean, np.mean(means, axis=0), atol=1e-5)


def test_a_net_without_batchnorm_is_refused():
    with pytest.raises(ConfigError, match=r"task.net: FedBN needs a net with BatchNorm layers"):
        toy_loop(one_rank(), FedBN(), net=PlainNet)


@pytest.mark.parametrize("samples", [0, 1])
def test_a_client_without_enough_samples_keeps_the_initial_statistics(samples):
    loop = toy_loop(one_rank(), FedBN())
    open_client(loop, 0)
    loop.engine.client.train_indices = loop.engine.client.train_indices[:samples]
    loop.algorithm.download(loop.engine.client, loop.server)
    assert torch.equal(loop.engine.client.task.net.body[1].running_mean, torch.zeros(8))
