"""How a net is made: one of ours, or any class or function that returns an `nn.Module`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets.any_net import AnyNet, match_channels
from pfl_lightning.tasks.data_facts import call_with_facts, unwrap

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec

    NetFactory = Callable[..., nn.Module]
else:

    class NetFactory(Protocol):
        """A class or function. Its parameters with these names are filled in from the data, see `data_facts.NAMES`."""

        def __call__(
            self, *, spec: Any, num_classes: int, in_channels: int, in_chans: int, input_shape: Any, in_features: int
        ) -> AnyNet:
            """Make the net."""


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
    return net
