"""The outputs of several nets with the same layers, computed layer by layer for all of them.

`torch.func.vmap` does that for any net, but it makes many small operations of a layer. The usual layers need one or two
each: linear layers of several clients are one batched product, convolutions one convolution with a group per client.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import conv2d, max_pool2d

from pfl_lightning.nets.net import Net

Layers = list[tuple[str, nn.Module]]


def stacked_outputs(net: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The outputs [clients, batch, ...] of a net.

    Args:
        net: gives the layers, not their weights.
        tensors: name of each parameter and buffer to its values for all clients. # [clients, *shape]
        x: inputs. # [clients, batch, ...]
    """
    layers = _known_layers(net)
    if layers is None:
        outputs: Tensor = vmap(lambda own, inputs: functional_call(net, own, (inputs,)))(dict(tensors), x)
        return outputs
    stack = _Stack(x)
    for prefix, layer in layers:
        stack.apply(layer, tensors.get(f"{prefix}weight"), tensors.get(f"{prefix}bias"))
    return stack.side_by_side()


def _known_layers(net: nn.Module, prefix: str = "") -> Layers | None:
    """The layers of a net in their order, with their prefix among the parameters. None: one is not known here."""
    if net._forward_hooks or net._forward_pre_hooks or net._backward_hooks:
        return None
    if _is_known(net):
        return [(prefix, net)]
    if type(net).forward is not Net.forward and type(net) is not nn.Sequential:
        return None
    children = ("body", "head") if isinstance(net, Net) else [name for name, _ in net.named_children()]
    parts = [_known_layers(net.get_submodule(name), f"{prefix}{name}.") for name in children]
    return [layer for part in parts for layer in part or ()] if all(part is not None for part in parts) else None


def _is_known(layer: nn.Module) -> bool:
    kind = type(layer)
    if isinstance(layer, nn.Conv2d):
        return kind is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.MaxPool2d):
        return kind is nn.MaxPool2d and not layer.return_indices
    if isinstance(layer, nn.Flatten):
        return kind is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    return kind in (nn.Linear, nn.ReLU)


class _Stack:
    """Values of all clients: [clients, batch, ...], or [batch, clients * channels, height, width] between images."""

    def __init__(self, x: Tensor) -> None:
        self.clients, self.x, self.mixed = len(x), x, False

    def apply(self, layer: nn.Module, weight: Tensor | None, bias: Tensor | None) -> None:
        if isinstance(layer, nn.ReLU):
            self.x = self.x.relu()
        elif isinstance(layer, nn.Flatten):
            self.x, self.mixed = self.side_by_side().flatten(2), False
        elif isinstance(layer, nn.MaxPool2d):
            window = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
            self.x, self.mixed = max_pool2d(self.channel_by_channel(), *window), True
        elif isinstance(layer, nn.Conv2d):
            assert weight is not None
            kernels, shifts = weight.flatten(0, 1), None if bias is None else bias.flatten()
            x, self.mixed = self.channel_by_channel(), True
            self.x = conv2d(x, kernels, shifts, layer.stride, layer.padding, layer.dilation, self.clients)
        else:
            assert weight is not None
            self.x, self.mixed = self._linear(weight.transpose(1, 2), bias), False

    def side_by_side(self) -> Tensor:
        """[clients, batch, ...]."""
        batch, _, *image = self.x.shape
        return self.x.reshape(batch, self.clients, -1, *image).transpose(0, 1) if self.mixed else self.x

    def channel_by_channel(self) -> Tensor:
        """[batch, clients * channels, height, width]."""
        return self.x if self.mixed else self.x.transpose(0, 1).flatten(1, 2)

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = self.side_by_side()
        rows = x if x.dim() == 3 else x.flatten(1, -2)
        y = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)
        return y if x.dim() == 3 else y.view(*x.shape[:-1], -1)
