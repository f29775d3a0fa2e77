"""Any `nn.Module` as a net: classes and channels are filled in by name, grey images become three channels."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from pfl_lightning.nets.net import Net

if TYPE_CHECKING:
    AnyNet = nn.Module
else:

    class AnyNet(ABC):  # noqa: B024
        """The type of `task.net` in a config. Every `nn.Module` counts as a subclass. Short names mean our own nets."""

        @classmethod
        def __subclasshook__(cls, other: type) -> bool:
            """Accept all modules."""
            return issubclass(other, nn.Module)

        @classmethod
        def __subclasses__(cls) -> list[type]:
            """The parser of configs looks for short names here."""
            return [Net]


def match_channels(net: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Let a net with three input channels take grey images. Returns the problem if the channels do not fit.

    Args:
        net: its first convolution tells the number of channels.
        shape: the shape of one sample.
    """
    first = next((part for part in net.modules() if isinstance(part, nn.Conv2d)), None)
    if first is None or len(shape) != 3 or first.in_channels == shape[0]:
        return None
    if (shape[0], first.in_channels) != (1, 3):
        return f"it takes images with {first.in_channels} channels, the data has {shape[0]}"
    net.register_forward_pre_hook(repeat_grey)
    return None


def repeat_grey(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """A forward pre-hook that repeats one channel three times."""
    x, *others = inputs
    return (x.repeat(1, 3, 1, 1), *others)
