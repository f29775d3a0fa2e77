"""The parts of a task that lie outside the flat vector, so that nothing passes from one client to the next."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torchmetrics import Metric

from pfl_lightning.model.layout import Layout
from pfl_lightning.model.value_copy import copied, equal

LIBRARIES = ("torch", "torchvision", "torchmetrics", "timm", "lightning", "pytorch_lightning", "pfl_lightning")
"""Modules of these packages keep nothing but parameters and buffers."""
INTERNAL = frozenset({*vars(nn.Module()), "_compiled_call_impl"})


class StartState:
    """Remembers buffers without a place in the vector, attributes of users' modules, and metrics.

    Attributes of modules and of their classes are remembered by value, objects of users' classes included. References
    to parts of the task stay. An object that cannot be copied, a class, a function or a data set is remembered by
    reference: changes inside it stay.

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
        own = [part for _, part in modules if _is_own(type(part))]
        self._shared = [task, *task.modules(), *task.parameters(), *task.buffers()]
        self._attributes = [(part, self._copied(_attributes(part))) for part in own]
        classes = dict.fromkeys(kind for part in own for kind in type(part).__mro__ if _is_own(kind))
        values = ((kind, _class_attributes(kind)) for kind in classes)
        self._classes = [(kind, self._copied(start)) for kind, start in values if start]
        self._trainable = [(p, p.requires_grad) for p in task.parameters()] if own else []
        self._metrics = [part for part in task.modules() if isinstance(part, Metric)]
        self.empty = not (self._loose or own or self._metrics)

    def changed(self) -> str | None:
        """The name of an attribute of a user's module that is not as at the start. None: no change was found."""
        for part, start in self._attributes:
            now = _attributes(part)
            for name in sorted({*now, *start}):
                if name not in now or name not in start or not equal(now[name], start[name]):
                    return name
        return None

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
            now.update(self._copied(start))
        for kind, start in self._classes:
            for name, value in self._copied(start).items():
                setattr(kind, name, value)
        for p, trainable in self._trainable:
            if p.requires_grad != trainable:
                p.requires_grad_(trainable)
        self.reset_metrics()

    def _copied(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """The attributes of a module by value."""
        memo: dict[int, Any] = {id(part): part for part in self._shared}
        return {name: copied(value, memo) for name, value in attributes.items()}

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


def _is_own(kind: type) -> bool:
    """Whether a class is the user's."""
    package = kind.__module__.partition(".")[0]
    return package not in LIBRARIES and package not in sys.stdlib_module_names


def _class_attributes(kind: type) -> dict[str, Any]:
    """The values that all objects of a class share, without its methods and properties."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith(("__", "_abc_")) and not callable(value) and not hasattr(type(value), "__get__")
    }


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in INTERNAL}
