"""Loss scaling for float16, which has no room for small gradients."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor

INITIAL_FACTOR = 2.0**15
"""The largest power of two in float16, because the loss itself may be float16."""


class LossScale:
    """The factor that scales the loss of one live model in float16.

    Fabric's own scaler leaves the gradient scaled until the optimizer steps, but methods read it earlier. It also skips
    a step whose gradient overflows. Here the gradient is scaled back at once. A gradient that overflows is computed
    again with half the factor (BatchNorm then sees the batch twice). Every visit starts with the same factor, so
    results do not depend on the clients that a rank has trained before.
    """

    def __init__(self) -> None:
        self.factor = INITIAL_FACTOR

    @classmethod
    def for_precision(cls, fabric: Fabric) -> LossScale | None:
        """A loss scale for `16-mixed`, whose own scaler is switched off. None for every other precision."""
        precision = fabric.strategy.precision
        if not isinstance(precision, MixedPrecision):
            return None
        precision.scaler = None
        return cls() if precision.precision == "16-mixed" else None

    def reset(self) -> None:
        """Start a visit."""
        self.factor = INITIAL_FACTOR

    def up(self, loss: Tensor) -> Tensor:
        """The loss to propagate back."""
        return loss * self.factor

    def undo(self, gradient: Tensor) -> bool:
        """Scale the gradient back, in place. False if it has overflowed and must be computed again."""
        ends = torch.stack(gradient.div_(self.factor).aminmax())
        if self.factor <= 1 or bool(ends.isfinite().all()):
            return True
        self.factor /= 2
        return False
