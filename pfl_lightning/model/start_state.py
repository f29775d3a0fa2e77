"""The parts of a task that lie outside the flat vector, so that nothing passes from one client to the next."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from pfl_lightning.model.layout import Layout

LIBRARIES = ("torch", "torchvision", "torchmetrics", "timm", "lightning", "pytorch_lightning", "pfl_lightning")
"""Modules of these packages keep nothing but parameters and buffers."""
INTERNAL = frozenset({*vars(nn.Module()), "_compiled_call_impl"})


class StartState:
    """Remembers buffers without a place in the vector, attributes of users' modules, and metrics.

    Tensors, numbers, texts, containers of them and random generators are remembered by value. Any other object is
    remembered by reference: changes inside it stay.

    Args:
        task: the task, in the state that every client starts from.
        layout: the places of its tensors in the vector.

    Attributes:
        empty: whether there is nothing to restore, as in our own tasks with nets that keep everything in the vector.
    """

    def __init__(self, task: nn.Module, layout: Layout) -> None:
        placed = {span.name for span in layout.spans}
        modules = [(path, part) for path, part in task.named_modules() if not isinstance(part, Metric)]
        buffers = [
            (owner, name, buffer, f"{path}.{name}" if path else name)
            for path, owner in modules
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._placed = [(owner, name, buffer) for owner, name, buffer, full in buffers if full in placed]
        self._loose = [
            (owner, name, buffer, buffer.clone()) for owner, name, buffer, full in buffers if full not in placed
        ]
        own = [part for _, part in modules if type(part).__module__.partition(".")[0] not in LIBRARIES]
        self._attributes = [(part, _attributes(part)) for part in own]
        self._trainable = [(p, p.requires_grad) for p in task.parameters()] if own else []
        self._metrics = [part for part in task.modules() if isinstance(part, Metric)]
        self.empty = not (self._loose or own or self._metrics)

    def restore(self) -> None:
        """Bring everything back. The vector itself is not changed."""
        for owner, name, buffer in self._placed:
            owner._buffers[name] = buffer
        for owner, name, buffer, value in self._loose:
            owner._buffers[name] = buffer.copy_(value)
        for part, start in self._attributes:
            now = vars(part)
            for name in now.keys() - start.keys() - INTERNAL:
                del now[name]
            now.update({name: _copied(value) for name, value in start.items()})
        for p, trainable in self._trainable:
            if p.requires_grad != trainable:
                p.requires_grad_(trainable)
        self.reset_metrics()

    def reset_metrics(self) -> None:
        """Forget all that the metrics inside the task have seen."""
        for metric in self._metrics:
            metric.reset()

    def adopt_buffers(self) -> None:
        """Write buffers that a module has replaced (`self.mean = …`) into the vector."""
        for owner, name, buffer in self._placed:
            now = owner._buffers.get(name)
            if now is not None and now is not buffer:
                owner._buffers[name] = buffer.copy_(now)


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {name: _copied(value) for name, value in vars(part).items() if name not in INTERNAL}


def _copied(value: Any) -> Any:
    """A copy of a value, without copies of unknown objects."""
    if isinstance(value, Tensor):
        return value if isinstance(value, nn.Parameter) else value.detach().clone()
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    if isinstance(value, np.ndarray | np.random.Generator | np.random.RandomState | random.Random):
        return copy.deepcopy(value)
    if isinstance(value, Mapping) and hasattr(value, "update"):
        copied: Any = copy.copy(value)
        copied.update({name: _copied(inner) for name, inner in value.items()})
        return copied
    if isinstance(value, deque):
        return deque((_copied(inner) for inner in value), value.maxlen)
    if type(value) in (list, tuple, set):
        return type(value)(_copied(inner) for inner in value)
    return value
