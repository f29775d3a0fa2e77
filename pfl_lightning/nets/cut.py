"""A net whose last layers become one: where a method works on a linear layer, the cut chooses how early it starts."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

from torch import nn

from pfl_lightning.nets.net import Net


def places(net: Net) -> list[str]:
    """Where a net can be cut: its head, and the linear layers of a sequential body, such as body.fc1."""
    layers = net.body.named_children() if isinstance(net.body, nn.Sequential) else ()
    return ["head", *(f"body.{name}" for name, layer in layers if isinstance(layer, nn.Linear))]


def cut(net: Net, place: str) -> None:
    """Put one new linear layer, as head, where the layer at `place` and all that follow were."""
    if place == "head":
        return
    name = place.removeprefix("body.")
    layers = list(cast(nn.Sequential, net.body).named_children())
    index = [other for other, _ in layers].index(name)
    first, last = cast(nn.Linear, layers[index][1]), cast(nn.Linear, net.head)
    net.body = nn.Sequential(OrderedDict(layers[:index]))
    net.head = nn.Linear(first.in_features, last.out_features, bias=last.bias is not None)
