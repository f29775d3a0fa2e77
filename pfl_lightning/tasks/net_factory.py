"""How a net is made: one of ours, or that of any class or function that returns an `nn.Module`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfl_lightning.data.federated import DataSpec
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets.any_net import match_channels
from pfl_lightning.tasks.data_facts import call_with_facts, unwrap
from pfl_lightning.tasks.factories import NetFactory


def make_net(make: NetFactory, spec: DataSpec) -> nn.Module:
    """The net for this data. Errors name the key `task.net`."""
    name = getattr(unwrap(make)[0], "__name__", "the function")
    try:
        net = call_with_facts(make, spec, "task.net")
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"task.net: {name} cannot be made: {type(error).__name__}: {reason}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"task.net: {name} returns {type(net).__name__}; use a class or function that makes a module")
    if problem := match_channels(net, spec.shape):
        raise ConfigError(f"task.net: {type(net).__name__} does not fit the data: {problem}")
    if not type(net).__module__.startswith("pfl_lightning."):  # our own nets check the shape themselves
        _try_out(net, spec)
    return net


@torch.no_grad()
def _try_out(net: nn.Module, spec: DataSpec) -> None:
    """Refuse a net that cannot take two samples, or makes too few outputs. Random state and buffers stay."""
    name, kind = type(net).__name__, torch.int64 if spec.vocabulary else torch.float32
    samples = torch.zeros(2, *spec.shape, dtype=kind)
    training = net.training
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = net.eval()(samples)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"task.net: {name} does not fit samples of shape {tuple(spec.shape)}: {type(error).__name__}: {reason}"
        ) from error
    finally:
        net.train(training)
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or outputs.shape[1] < spec.num_classes:
        made = f"{list(outputs.shape[1:])} outputs" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ConfigError(f"task.net: {name} makes {made} for a sample; the data needs {spec.num_classes}")
