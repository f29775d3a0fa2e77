"""How a user's LightningModule is made. It has a file of its own, because the parser of configs reads the type here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lightning import LightningModule

if TYPE_CHECKING:
    ModuleFactory = Callable[..., LightningModule]
else:

    class ModuleFactory(Protocol):
        """A class or function. Its parameters with these names are filled in from the data, see `data_facts.NAMES`."""

        def __call__(
            self, *, spec: Any, num_classes: int, in_channels: int, in_chans: int, input_shape: Any, in_features: int
        ) -> LightningModule:
            """Make the module."""
