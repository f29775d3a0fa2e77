"""A module's tensors as one flat vector, so that a model can be masked, scored, sent and summed in one operation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pfl_lightning.foundation.errors import ConfigError


class Span(NamedTuple):
    """One tensor's place in the vector: entries start to stop."""

    name: str
    start: int
    stop: int
    shape: torch.Size


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a module lies in one flat float vector: parameters [0, P), then float buffers [P, S).

    Tied parameters appear once. Integer buffers (BatchNorm's batch counter) and buffers outside the state dict
    (constants) have no place: they never travel. Tensors of four dimensions lie in channels_last order (O, H, W, I) on
    every device, or in their plain one, so that convolutions get their weights as they like them, without a copy.

    Attributes:
        spans: the parameters in the module's order, then the buffers.
        num_parameters: P.
        channels_last: the order of tensors of four dimensions.
    """

    spans: tuple[Span, ...]
    num_parameters: int
    channels_last: bool = True

    @classmethod
    def of(cls, module: nn.Module, channels_last: bool = True) -> Layout:
        """The layout of `module`. A `ConfigError` names a tensor without a size, or of another type than the rest."""
        tensors = _tensors(module)
        if lazy := next((name for name, tensor in tensors.items() if is_lazy(tensor)), None):
            raise ConfigError(
                f"task: {lazy} belongs to a lazy layer, which has no size yet; give the layer its size, e.g. with the "
                "parameter in_features or input_shape, which the data fills in"
            )
        parameters = dict(module.named_parameters())
        dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.float32)
        spans: list[Span] = []
        start = 0
        for name, tensor in tensors.items():
            if tensor.dtype != dtype:
                raise ConfigError(f"task: {name} is {tensor.dtype}; all parameters and float buffers must be {dtype}")
            spans.append(Span(name, start, start + tensor.numel(), tensor.shape))
            start += tensor.numel()
        return cls(tuple(spans), sum(p.numel() for p in parameters.values()), channels_last)

    @cached_property
    def size(self) -> int:
        """S, the length of the vector."""
        return self.spans[-1].stop if self.spans else 0

    @cached_property
    def parameter_spans(self) -> tuple[Span, ...]:
        """The spans of [0, P)."""
        return tuple(span for span in self.spans if span.stop <= self.num_parameters)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Name to view into `vector`, in the tensor's own shape. A vector of length P has the parameters only. Of
        several vectors [..., S] or [..., P] the views are [..., *shape].
        """
        if vector.shape[-1] not in (self.size, self.num_parameters):
            raise ValueError(
                f"a vector of shape {tuple(vector.shape)} does not fit: it must have {self.size} or "
                f"{self.num_parameters} entries"
            )
        return {span.name: self._view(vector, span) for span in self.spans if span.stop <= vector.shape[-1]}

    def where(self, names: Iterable[str], device: torch.device | None = None) -> Tensor:
        """Bool [S], True at the entries of the tensors with these names."""
        spans = {span.name: span for span in self.spans}
        mask = torch.zeros(self.size, dtype=torch.bool, device=device)
        for name in names:
            mask[spans[name].start : spans[name].stop] = True
        return mask

    def fingerprint(self) -> str:
        """A short hash of names, shapes and orders: a checkpoint fits a model when they are equal."""
        text = ";".join(f"{span.name}{list(span.shape)}" for span in self.spans) + f"|{self.num_parameters}"
        text += "" if self.channels_last else "|plain"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _view(self, vector: Tensor, span: Span) -> Tensor:
        entries, outer = vector[..., span.start : span.stop], vector.shape[:-1]
        if len(span.shape) == 4 and self.channels_last:
            out, in_, height, width = span.shape
            return entries.view(*outer, out, height, width, in_).movedim(-1, -3)
        return entries.view(outer + span.shape)


def flatten(module: nn.Module, layout: Layout, rows: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Move all parameters and float buffers of `module` into one vector. Each becomes a view of it.

    Do it after the module is on its device: moving the module, or copying it, makes tensors of their own again.

    Args:
        module: its tensors must be those of `layout`.
        layout: the places in the vector.
        rows: memory [S] and [P] for the vector and the gradient. New by default.

    Returns:
        The vector [S] and the gradient [P], which starts at zero. Each `p.grad` is a view of it with the strides of
        `p`. Zero it in place (`grad.zero_()`), since `zero_grad()` would drop the views.
    """
    tensors = _tensors(module)
    like = next(iter(tensors.values()), torch.empty(0))
    vector, grad = rows or (
        torch.empty(layout.size, dtype=like.dtype, device=like.device),
        torch.empty(layout.num_parameters, dtype=like.dtype, device=like.device),
    )
    grad.zero_()
    views, grads = layout.views(vector), layout.views(grad)
    for span in layout.spans:
        tensor, view = tensors[span.name], views[span.name]
        view.copy_(tensor.detach())
        tensor.data = view  # the object stays the same, so tied parameters and optimizers keep pointing to it
        if span.stop <= layout.num_parameters:
            tensor.grad = grads[span.name]
    return vector, grad


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that have a place in the vector, by name, in its order."""
    kept = module.state_dict(keep_vars=True)
    buffers = {name: b for name, b in module.named_buffers() if name in kept and b.is_floating_point()}
    return {**dict(module.named_parameters()), **buffers}
