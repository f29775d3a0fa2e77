"""The head of any module: the layer that turns features into outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from pfl_lightning.foundation.errors import ConfigError

NAMES = ("head", "classifier", "fc")
"""Usual names of a head, the preferred one first."""


def find_head(root: nn.Module, wanted: str | None, prefix: str = "") -> str | None:
    """The path of the head below `root`, or None if there is no candidate.

    It is the module named head, classifier or fc nearest to the root, else the last linear layer. A name that
    occurs several times at the same depth (as in blocks with attention) does not count.

    Args:
        root: the module to search.
        wanted: the path that the user gave, relative to `root` or to `prefix`.
        prefix: the path of the net inside `root`.
    """
    modules: dict[str, nn.Module] = {
        path: module for path, module in root.named_modules() if path and _has_parameters(module)
    }
    if wanted is not None:
        return _require_path(modules, wanted, prefix)
    named = [path for path in modules if path.rpartition(".")[2] in NAMES]
    for depth in sorted({path.count(".") for path in named}):
        for name in NAMES:
            same = [path for path in named if path.count(".") == depth and path.rpartition(".")[2] == name]
            if len(same) == 1:
                return same[0]
    linear = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def _require_path(modules: dict[str, nn.Module], wanted: str, prefix: str) -> str:
    for path in (wanted, f"{prefix}.{wanted}"):
        if path in modules:
            return path
    shown = [path.removeprefix(f"{prefix}.") for path in modules if path != prefix]
    raise ConfigError(f"task.head: no layer {wanted!r} with parameters; use {' | '.join(shown)}")


def _has_parameters(module: nn.Module) -> bool:
    return not isinstance(module, Metric) and next(module.parameters(), None) is not None


def replace_module(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put `module` at `path` below `root`."""
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent), name, module)


def capture_features(model: nn.Module, head: nn.Module, x: Tensor) -> Tensor:
    """The input that the head gets while `model` computes its output for `x`."""
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        model(x)
    finally:
        handle.remove()
    if len(seen) != 1:
        raise ConfigError(f"task.head: the head is used {len(seen)} times in a forward pass; name a layer used once")
    return seen[0]


@torch.no_grad()
def outputs_are_the_heads(model: nn.Module, head: nn.Module, x: Tensor) -> bool:
    """Whether the model's output is the output of its head, applied to one tensor."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = head.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    try:
        output = model(x)
    finally:
        handle.remove()
    return (
        len(seen) == 1
        and isinstance(output, Tensor)
        and output.shape == seen[0][1].shape
        and bool(torch.equal(output, seen[0][1]))
    )
