"""What every net is: a body that makes features and a head that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.errors import ConfigError

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class Net(nn.Module):
    """Body and head. Methods that share one and keep the other find them here, never by a layer's name.

    A subclass takes the `DataSpec` as its first argument, then its own options.

    Args:
        body: inputs to features [N, D].
        head: features to outputs.
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
    """The (C, H, W) of the data, or a `ConfigError` when `net` cannot take it."""
    if len(spec.shape) != 3:
        raise ConfigError(f"task.net: {net} needs images (C, H, W), the data has shape {tuple(spec.shape)}; use MLP")
    channels, height, width = spec.shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"task.net: {net} needs images of at least {smallest}x{smallest}, the data has {height}x{width}"
        )
    return channels, height, width
