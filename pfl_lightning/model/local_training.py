"""How a client trains at one visit: the settings, a training that is ready to start, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from lightning.fabric.wrappers import _FabricOptimizer
from torch import Tensor

from pfl_lightning.model.flat_model import Loss


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains at one visit."""

    epochs: int = 1
    batch_size: int = 32
    test_batch_size: int = 1024
    channels_last: bool = True
    lr_factor: Callable[[int], float] | None = None
    """The factor of the learning rate in a round. None: always 1."""
    tests: Callable[[int], bool] | None = None
    """Whether participants are tested in a round. None: always."""
    finetune_lr: float | None = None
    """The learning rate of fine-tuning. None: the method's own."""
    finetune_part: Literal["all", "head", "body"] | None = None
    """The part of the model that fine-tuning may change. None: the method's own choice."""


@dataclass(frozen=True)
class Training:
    """A local training, ready to start. `train_epochs` explains the parts."""

    optimizer: _FabricOptimizer
    loss: Loss | None
    on_gradient: Callable[[], None] | None
    restore: Callable[[], None] | None
    """Undoes the step at entries that must not move."""
    epochs: int | None
    stream: str
    steps: int | None


def split_batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Cut a permutation into batches."""
    return list(torch.split(order, batch_sizes(len(order), batch_size)))


def batch_sizes(samples: int, batch_size: int) -> list[int]:
    """The sizes of an epoch's batches. A last batch of one sample joins the one before, because of BatchNorm."""
    full, rest = divmod(samples, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0) or [0]
    if len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [sizes[-2] + 1]
    return sizes
