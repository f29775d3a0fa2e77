"""`loop.channels_last`: the same training in either memory order of images and convolutions, up to rounding."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from torch.optim import SGD

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.data import Fashion10k
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.model.layout import Layout
from pfl_lightning.nets import SmallCNN
from pfl_lightning.report.activations import activation_counts
from pfl_lightning.report.mask_record import MaskHistory
from pfl_lightning.tasks import Classification

CONVOLUTION = "net.body.conv2.weight"


def trained(channels_last: bool) -> FederatedFabricLoop:
    data = Fashion10k(num_clients=100)
    data.setup(3)
    task = Classification(SmallCNN, lambda p: SGD(p, lr=0.05))
    config = LoopConfig(rounds=2, participation=0.03, eval_every=0, channels_last=channels_last)
    loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, FedOBP(quantile=0.9), data, config)
    loop.fit()
    return loop


def test_both_orders_train_the_same_model():
    last, plain = trained(True), trained(False)
    weight, other = (loop.engine.client.layout.views(loop.server.vector)[CONVOLUTION] for loop in (last, plain))
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert other.is_contiguous()
    assert not torch.equal(last.server.vector, plain.server.vector), "the orders differ"
    for name, tensor in last.engine.client.layout.views(last.server.vector).items():
        torch.testing.assert_close(
            plain.engine.client.layout.views(plain.server.vector)[name], tensor, atol=1e-5, rtol=1e-4
        )
    images, _ = plain.data.batch(torch.arange(2), torch.device("cpu"))
    assert images.is_contiguous(), "images follow"
    assert last.server.layout.fingerprint() != plain.server.layout.fingerprint(), "neither can continue the other"


def test_pictures_of_masks_show_the_same_kernel(tmp_path):
    """The first kernel of [2, 3, 2, 2], whose entries are numbered in the plain order, whatever the memory order."""
    shape, numbers = (2, 3, 2, 2), torch.arange(24, dtype=torch.int32)
    for channels_last in (True, False):
        layout = Layout.of(torch.nn.Conv2d(3, 2, 2, bias=False), channels_last)
        counts = torch.empty(24, dtype=torch.int32)
        layout.views(counts)["weight"].copy_(numbers.view(shape))
        visits, labels = torch.ones(1, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64)
        history = MaskHistory(layout, counts[None] > 0, counts[None].clone(), visits, counts, 1, labels)
        history.save(tmp_path / "masks.safetensors")
        again = MaskHistory.load(tmp_path / "masks.safetensors")
        assert again.layout == layout
        assert activation_counts(again, "weight", [0]).tolist() == [list(range(12))] * 2
