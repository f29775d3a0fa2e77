"""Nets in which a sample's outcome depends on nothing but the sample: what may be split over ranks or stacked."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pfl_lightning.errors import ConfigError


def require_sample_wise(net: nn.Module, key: str) -> None:
    """Refuse, naming the setting `key`, a net whose outcome depends on how samples are put together.

    BatchNorm's statistics would be those of parts, and dropout's random numbers would be drawn in another order: the
    result would not be that of one client trained by one rank.
    """
    for name, module in net.named_modules():
        instead = ""
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
            instead = "a net with GroupNorm"
        elif isinstance(module, _DropoutNd | nn.RNNBase | nn.MultiheadAttention) and _drop_rate(module):
            instead = "a net without dropout"
        if instead:
            raise ConfigError(f"{key}: {name} is a {type(module).__name__}, which needs 1 here; use 1, or {instead}")


def _drop_rate(module: nn.Module) -> float:
    return float(getattr(module, "p", getattr(module, "dropout", 0.0)))
