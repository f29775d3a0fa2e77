"""Replacing the last layers of a net by one linear layer, for methods that train a linear layer in closed form."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

from torch import nn

from pfl_lightning.nets.net import Net


def start_layers(net: Net) -> list[str]:
    """Return the layers at which the replaced tail can start: the head, and the linear layers of a sequential body.

    The names are those of the config, such as "head" or "body.fc1".
    """
    layers = net.body.named_children() if isinstance(net.body, nn.Sequential) else ()
    return ["head", *(f"body.{name}" for name, layer in layers if isinstance(layer, nn.Linear))]


def replace_tail(net: Net, start: str) -> None:
    """Replace the layer `start` and all layers after it by one new linear layer, which becomes the head.

    Args:
        net: the net to change in place.
        start: one of `start_layers`. "head" leaves the net unchanged.
    """
    if start == "head":
        return
    name = start.removeprefix("body.")
    layers = list(cast(nn.Sequential, net.body).named_children())
    index = [other for other, _ in layers].index(name)
    first, last = cast(nn.Linear, layers[index][1]), cast(nn.Linear, net.head)
    net.body = nn.Sequential(OrderedDict(layers[:index]))
    net.head = nn.Linear(first.in_features, last.out_features, bias=last.bias is not None)
