"""A client's features: what the body of its net makes of its own samples, and their means per class.

Shared by the methods that work on features (FedPAC, FLUTE, pFedFDA, kNN-Per).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pfl_lightning.client import ClientModule
from pfl_lightning.errors import ConfigError
from pfl_lightning.nets.net import Net
from pfl_lightning.tasks.classification import Classification
from pfl_lightning.tasks.task import Task


def require_classifier(task: Task, method: str, linear_head: bool = True) -> None:
    """Refuse a task that has no classes, no body and head, or (if the method reads its weights) no linear head."""
    if not isinstance(task, Classification) or not isinstance(task.net, Net):
        raise ConfigError(f"task: {method} works on classes and features; use Classification with a Net")
    if linear_head and not (isinstance(task.net.head, nn.Linear) and task.net.head.bias is not None):
        raise ConfigError(f"task.net: {method} needs a net whose head is one linear layer with a bias")


def linear_head(client: ClientModule) -> nn.Linear:
    """The client's head, of which `require_classifier` has seen that it is one linear layer."""
    return cast(nn.Linear, client.task.net.head)


@torch.no_grad()
def features(client: ClientModule, indices: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Features [N, D] and labels [N] of the client's training samples (or of those at `indices`), in their order.

    In evaluation mode: BatchNorm uses its running statistics and dropout is off.
    """
    client.task.eval()
    parts: list[tuple[Tensor, Tensor]] = []
    for part in torch.split(client.train_indices if indices is None else indices, client.local.test_batch_size):
        x, y = client.data.batch(part, client.vector.device)
        with client.runtime.autocast():
            parts.append((client.task.net.body(x).float(), y))
    return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])


def class_means(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class [C, D], zero for a class without samples, and the classes' counts [C]."""
    member = one_hot(y, num_classes).to(z.dtype)
    counts = member.sum(0)
    return member.T @ z / counts.clamp(min=1)[:, None], counts
