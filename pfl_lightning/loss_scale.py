"""float16 has no room for small gradients: the loss is scaled up while they are computed."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor

FIRST = 2.0**15
"""The largest power of two in float16, in case that the loss itself is."""


class LossScale:
    """The factor of one live model; without float16 it does nothing.

    Fabric's own scaler leaves the gradient scaled until the optimizer steps, but methods look at it before that; it
    also leaves out a step whose gradient overflows. Here the gradient is scaled back at once, and one that overflows is
    computed again with half the factor (BatchNorm then sees the batch twice). Every visit starts with the same factor,
    so that results do not depend on whom a rank has trained before.

    Args:
        fabric: its precision decides; its scaler is switched off.
    """

    def __init__(self, fabric: Fabric) -> None:
        precision = fabric.strategy.precision
        self.on = isinstance(precision, MixedPrecision) and precision.precision == "16-mixed"
        if isinstance(precision, MixedPrecision):
            precision.scaler = None
        self.factor = FIRST

    def reset(self) -> None:
        """A visit begins."""
        self.factor = FIRST

    def up(self, loss: Tensor) -> Tensor:
        """The loss to propagate back."""
        return loss * self.factor if self.on else loss

    def undo(self, gradient: Tensor) -> bool:
        """Scale the gradient back, in place; False: it has overflowed and must be computed again."""
        if not self.on:
            return True
        ends = torch.stack(gradient.div_(self.factor).aminmax())
        if self.factor <= 1 or bool(ends.isfinite().all()):
            return True
        self.factor /= 2
        return False
