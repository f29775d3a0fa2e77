"""Nets whose output for a sample depends on that sample only. Their batches may be split or stacked."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pfl_lightning.foundation.errors import ConfigError


def require_per_sample(net: nn.Module, key: str) -> None:
    """Refuse a net whose output depends on the grouping of samples. The error names the setting `key`.

    BatchNorm would see the statistics of parts, and dropout would draw its random numbers in another order. The result
    would differ from training one client on one rank.
    """
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
            reason, instead = "depends on the whole batch", "use GroupNorm"
        elif isinstance(module, _DropoutNd | nn.RNNBase | nn.MultiheadAttention) and _drop_rate(module):
            reason, instead = "draws random numbers for the whole batch", "use a net without dropout"
        else:
            continue
        raise ConfigError(f"{key}: {name} ({type(module).__name__}) {reason}, so only 1 is supported; {instead}")


def _drop_rate(module: nn.Module) -> float:
    return float(getattr(module, "p", getattr(module, "dropout", 0.0)))
