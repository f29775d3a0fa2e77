"""How a user's net or LightningModule is made.

These types have a short file of their own. The parser of configs reads the file that a type is in, dozens of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lightning import LightningModule
from torch import nn

from pfl_lightning.nets.any_net import AnyNet

if TYPE_CHECKING:
    NetFactory = Callable[..., nn.Module]
    ModuleFactory = Callable[..., LightningModule]
else:

    class NetFactory(Protocol):
        """A class or function. Its parameters with these names are filled in from the data, see `data_facts.NAMES`."""

        def __call__(
            self, *, spec: Any, num_classes: int, in_channels: int, in_chans: int, input_shape: Any, in_features: int
        ) -> AnyNet:
            """Make the net."""

    class ModuleFactory(Protocol):
        """A class or function. Its parameters with these names are filled in from the data, see `data_facts.NAMES`."""

        def __call__(
            self, *, spec: Any, num_classes: int, in_channels: int, in_chans: int, input_shape: Any, in_features: int
        ) -> LightningModule:
            """Make the module."""
