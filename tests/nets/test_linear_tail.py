"""Replacing the last layers of a net by one linear layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pfl_lightning.data.federated import DataSpec
from pfl_lightning.nets import LeNet, Powers, ResNet8
from pfl_lightning.nets.linear_tail import replace_tail, start_layers

COLOUR = DataSpec((3, 32, 32), 10)


def test_the_tail_can_start_at_the_head_or_at_a_linear_layer_of_the_body() -> None:
    assert start_layers(LeNet(COLOUR)) == ["head", "body.fc1", "body.fc2"]
    assert start_layers(ResNet8(COLOUR)) == ["head"]


@pytest.mark.parametrize(("start", "features", "last"), [("body.fc1", 400, "flatten"), ("body.fc2", 120, "relu3")])
def test_the_tail_becomes_one_linear_layer(start: str, features: int, last: str) -> None:
    net = LeNet(COLOUR)
    kept = net.body.conv1.weight
    replace_tail(net, start)
    assert list(dict(net.body.named_children()))[-1] == last
    assert isinstance(net.head, nn.Linear)
    assert (net.head.in_features, net.head.out_features, net.head.bias is None) == (features, 10, False)
    assert net.body.conv1.weight is kept
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_starting_at_the_head_changes_nothing() -> None:
    net = Powers(DataSpec((1,), 1))
    body, head = net.body, net.head
    replace_tail(net, "head")
    assert net.body is body
    assert net.head is head
