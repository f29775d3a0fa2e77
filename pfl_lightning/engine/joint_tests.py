"""Tests of several clients at once, each with its own model and samples (`loop.clients_per_step`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from pfl_lightning.engine.lockstep import LockstepClient
from pfl_lightning.engine.shared_tests import TOLERANCE, TRIAL_SAMPLES
from pfl_lightning.foundation.transfer import send
from pfl_lightning.tasks.task import Task


class JointTests:
    """Tests live models whose vectors are rows of a tensor.

    Args:
        clients: the live models.
        vectors: their vectors. # [clients, S]

    Attributes:
        possible: whether the task's sums can be taken sample by sample, for several models at once.
    """

    def __init__(self, clients: Sequence[LockstepClient], vectors: Tensor) -> None:
        self.clients, self.vectors, self.layout = clients, vectors, clients[0].layout
        self.possible = self._try_out()

    @torch.no_grad()
    def run(self, parts: Sequence[Tensor]) -> Tensor:
        """The task's sums of the first live models, each over its own samples: float64 [clients, sums]."""
        first, count, device = self.clients[0], len(parts), self.vectors.device
        first.task.eval()
        padded, lengths = pad_sequence(list(parts), batch_first=True), torch.tensor([len(part) for part in parts])
        real = send(torch.arange(padded.shape[1]) < lengths[:, None], device)[..., None]
        total = torch.zeros(count, len(first.task.sums), dtype=torch.float64, device=device)
        width = max(1, first.local.test_batch_size // count)
        own = {f"task.{name}": view for name, view in self.layout.views(self.vectors[:count]).items()}
        for start in range(0, padded.shape[1], width):
            at, inside = padded[:, start : start + width], real[:, start : start + width]
            for client in self.clients[:count]:
                client.check_for_stop()
            batch = first.data.batch(at.flatten(), device)
            x, y = (part.view(*at.shape, *part.shape[1:]) for part in batch)
            total += self._compute(own, x, y).where(inside, 0.0).sum(1)
        return total

    def _compute(self, own: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The sums of each sample. # [clients, samples, sums]"""
        sums, autocast = _SampleSums(self.clients[0].task), self.clients[0].fabric_.autocast

        def compute(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with autocast():
                found: Tensor = functional_call(sums, own, (x, y))
            return found

        answer: Tensor = vmap(compute)(dict(own), x, y)
        return answer

    def _try_out(self) -> bool:
        """Try two models with a few samples each. Nothing of it remains."""
        (first, second), initial = self.clients[:2], self.vectors[:2].clone()
        if not first.task.has_sample_sums or first.task.hooks.active or len(first.data.samples.y) < TRIAL_SAMPLES:
            return False
        parts = torch.split(torch.arange(TRIAL_SAMPLES), TRIAL_SAMPLES - 1)
        try:
            second.vector.mul_(0.5)
            apart = torch.stack([client.test_on(part) for client, part in zip((first, second), parts, strict=True)])
            return torch.allclose(self.run(parts), apart, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        except Exception:  # vmap refuses much of what a task may do: then clients are tested one by one
            return False
        finally:
            self.vectors[:2] = initial


class _SampleSums(nn.Module):
    """`Task.sample_sums` as the forward pass of a module, which `torch.func.functional_call` can call."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    @override
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.task.sample_sums((x, y))
