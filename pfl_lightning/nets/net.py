"""The base class of all nets: a body that computes features and a head that maps them to outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class Net(nn.Module):
    """A net with a body and a head. Methods that share one of them and keep the other use these attributes.

    A subclass takes a `DataSpec` as its first argument and its own options after it.

    Args:
        body: maps inputs to features [N, D].
        head: maps features to outputs.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    @override
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x))
        return outputs


def image_shape(net: str, spec: DataSpec, smallest: int = 1) -> tuple[int, int, int]:
    """Return (C, H, W) of the data, or raise a `ConfigError` if the net called `net` cannot take it."""
    if len(spec.shape) != 3:
        raise ConfigError(
            f"task.net: {net} needs images (C, H, W), but the data has shape {tuple(spec.shape)}; use MLP"
        )
    channels, height, width = spec.shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"task.net: {net} needs images of at least {smallest}x{smallest}, the data has {height}x{width}"
        )
    return channels, height, width
