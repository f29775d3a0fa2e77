"""The features of a client's samples, their means per class, and checks of the net that makes them.

Shared by the methods that work on features (FedPAC, FLUTE, pFedFDA, kNN-Per, Learn2pFed).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.client import ClientModule
from pfl_lightning.nets.net import Net
from pfl_lightning.tasks.classification import Classification
from pfl_lightning.tasks.head import outputs_are_the_heads
from pfl_lightning.tasks.regression import Regression
from pfl_lightning.tasks.task import Batch, Task

TRIAL_SAMPLES = 2


def learns_classes(task: Task, data: FederatedData) -> bool:
    """Whether the targets of the task are classes."""
    if isinstance(task, Classification | Regression):
        return isinstance(task, Classification)
    return data.kind == "classes"


def require_classifier(task: Task, data: FederatedData, method: str) -> None:
    """Refuse a task whose outputs are not one logit per class."""
    if not learns_classes(task, data):
        raise ConfigError(f"task: {method} works on classes; {type(task).__name__} on {data.name} predicts numbers")
    if isinstance(task, Classification) and isinstance(task.net, Net):
        return
    outputs = _try(task, data, method)
    if not isinstance(outputs, Tensor) or outputs.shape[1:] != (data.spec.num_classes,):
        shape = f"a tensor {list(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ConfigError(
            f"task: {method} needs forward(x) to return {data.spec.num_classes} logits per sample; it returns {shape}"
        )
    if bool((outputs >= 0).all()) and bool(torch.isclose(outputs.sum(1), outputs.new_ones(())).all()):
        raise ConfigError(f"task: {method} needs forward(x) to return logits; it returns probabilities")


def require_head(task: Task, data: FederatedData, method: str, linear: bool = True) -> None:
    """Refuse a task whose output is not the output of its head, or whose head is not one linear layer with a bias."""
    name, head = task.head_name, task.head
    if linear and not (isinstance(head, nn.Linear) and head.bias is not None):
        raise ConfigError(
            f"task.head: {method} needs one linear layer with a bias as the head; {name} is {type(head).__name__}"
        )
    if isinstance(task.net, Net) and head is task.net.head:
        return
    x, _ = data.batch(torch.arange(min(TRIAL_SAMPLES, len(data.samples.y))), task.device)
    with torch.random.fork_rng([]):
        task.eval()
        fits = outputs_are_the_heads(task, head, x)
        task.train()
    if not fits:
        raise ConfigError(f"task.head: {method} needs a net whose output is the output of its head, {name}; it is not")


def _try(task: Task, data: FederatedData, method: str) -> object:
    """The outputs of the task for a few samples."""
    x, _ = data.batch(torch.arange(min(TRIAL_SAMPLES, len(data.samples.y))), task.device)
    try:
        with torch.random.fork_rng([]), torch.no_grad():
            task.eval()
            return task(x)
    except ConfigError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise ConfigError(f"task: {method} needs forward(x) to return logits; it fails: {reason}") from error
    finally:
        task.train()


def linear_head(client: ClientModule) -> nn.Linear:
    """The client's head. `require_head` has made sure that it is one linear layer."""
    return cast(nn.Linear, client.task.head)


class HeadStep(NamedTuple):
    """A training step, and what went into the head and came out of it."""

    loss: Tensor
    features: Tensor
    logits: Tensor


def step_through(task: Task, batch: Batch, method: str) -> HeadStep:
    """The task's own loss of a training batch, with the features and the logits that belong to it."""
    loss, seen = _watch(task.head, task, batch)
    if len(seen) != 1 or seen[0][0].shape[:1] != batch[1].shape[:1]:
        raise ConfigError(f"task: {method} needs a training_step that passes the batch through the head exactly once")
    return HeadStep(loss, *seen[0])


def step_with_outputs(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """The task's own loss of a training batch, and the outputs of the net.

    A training step that does not call `self(x)` for this batch costs a second forward pass.
    """
    loss, seen = _watch(task.net, task, batch)
    fits = len(seen) == 1 and isinstance(seen[0][1], Tensor) and seen[0][1].shape[:1] == batch[1].shape[:1]
    return loss, seen[0][1] if fits else task(batch[0])


def _watch(part: nn.Module, task: Task, batch: Batch) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The loss of a training step, and each input and output of a part of the model on the way."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = part.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    try:
        return task.training_step(batch), seen
    finally:
        handle.remove()


@torch.no_grad()
def features(client: ClientModule, indices: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Features [N, D] and labels [N] of the client's training samples (or of those at `indices`), in their order.

    In evaluation mode: BatchNorm uses its running statistics and dropout is off.
    """
    client.task.eval()
    parts: list[tuple[Tensor, Tensor]] = []
    for part in torch.split(client.train_indices if indices is None else indices, client.local.test_batch_size):
        x, y = client.data.batch(part, client.vector.device)
        with client.fabric_.autocast():
            parts.append((client.task.features(x).float(), y))
    return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])


def class_means(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class [C, D], zero for a class without samples, and the classes' counts [C]."""
    member = one_hot(y, num_classes).to(z.dtype)
    counts = member.sum(0)
    return member.T @ z / counts.clamp(min=1)[:, None], counts
