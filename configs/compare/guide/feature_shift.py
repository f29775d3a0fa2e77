"""Data and a net for `feature_shift.yaml`. Both are examples of own classes beside an experiment file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.data import DataSpec, Fashion10k
from pfl_lightning.nets import Net

# One change for each kind of client. Images are bytes [N, H, W, C].
CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "rotation": tuple(partial(torch.rot90, k=turns, dims=(1, 2)) for turns in range(4)),
    "camera": (lambda x: x, lambda x: 255 - x, lambda x: x // 4, lambda x: 128 + x // 4),
}


class Cameras(Fashion10k):
    """Fashion10k, seen in four ways. Client 0 sees it in the first way, client 1 in the second, client 4 as client 0.

    Args:
        change: "rotation" turns a client's images by 0, 90, 180 or 270 degrees. "camera" leaves them as they are, or
            makes them negative, dark, or pale.
        **kwargs: as for Fashion10k.
    """

    def __init__(self, change: Literal["rotation", "camera"] = "rotation", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.change = change

    @override
    def setup(self, seed: int) -> None:
        super().setup(seed)
        images, kinds = self.samples.x.clone(), CHANGES[self.change]
        for client in range(self.num_clients):
            own = torch.cat([self.train_indices(client), self.validation_indices(client), self.test_indices(client)])
            images[own] = kinds[client % len(kinds)](images[own])
        self.samples = self.samples._replace(x=images)


class LeNetBN(Net):
    """LeNet with BatchNorm after each convolution, for FedBN."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(
            nn.Sequential(
                *(nn.Conv2d(spec.shape[0], 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
            ),
            nn.Linear(84, spec.num_classes),
        )
