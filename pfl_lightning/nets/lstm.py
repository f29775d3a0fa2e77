"""A recurrent net for windows of a time series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.nets.net import Net

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class LSTM(Net):
    """An LSTM that reads a window step by step, and a linear head on its last state.

    The default is the forecasting baseline of the Learn2pFed paper: two layers of size 12, 1 981 parameters for one
    output.

    Args:
        spec: shape of the data, a window [steps] or [steps, values].
        hidden: size of each layer's state.
        layers: number of layers.
    """

    def __init__(self, spec: DataSpec, hidden: int = 12, layers: int = 2) -> None:
        require(hidden >= 1, "task.net.hidden", hidden, "1 or more")
        require(layers >= 1, "task.net.layers", layers, "1 or more")
        if len(spec.shape) not in (1, 2):
            raise ConfigError(
                f"task.net: LSTM needs windows of a time series, but the data has shape {tuple(spec.shape)}; use CNN"
            )
        super().__init__(LastState(spec.shape[1:], hidden, layers), nn.Linear(hidden, spec.num_classes))


class LastState(nn.Module):
    """Computes the state of the top layer after the last step, [N, hidden]."""

    def __init__(self, values: tuple[int, ...], hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(values[0] if values else 1, hidden, layers, batch_first=True)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the last state for windows [N, steps] or [N, steps, values]."""
        states: Tensor = self.lstm(x if x.dim() == 3 else x.unsqueeze(2))[0]
        return states[:, -1]
