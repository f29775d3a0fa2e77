"""Large clients, few of them: a team of ranks trains each client together (`loop.ranks_per_client`).

The world is cut into teams of consecutive ranks. All members of a team visit the same clients in step and do the same
things; only the gradient of the task's loss is shared out: each member computes it for its part of the batch, and the
parts are added up. The first member, the leader, is the one that holds the clients' states and hands in their uploads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from safetensors.torch import load as decode_state
from safetensors.torch import save as encode_state
from torch import Tensor

from pfl_lightning.cohort import assign
from pfl_lightning.comm import Comm
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload
from pfl_lightning.live_model import LiveModel
from pfl_lightning.sample_wise import require_sample_wise
from pfl_lightning.tasks.task import Batch

State = dict[str, Tensor]


class Team:
    """The ranks that train a client together, seen from one of them. A team of one does everything as usual.

    Args:
        comm: all ranks.
        model: the live model of this rank.
        size: how many ranks make a team.
    """

    def __init__(self, comm: Comm, model: LiveModel, size: int) -> None:
        key = "loop.ranks_per_client"
        require(comm.world % size == 0, key, size, f"a number that divides the number of ranks, {comm.world}")
        self.comm, self.model, self.size = comm, model, size
        self.place = comm.rank % size
        self.leader = comm.rank - self.place
        self.group: dist.ProcessGroup | None = None
        if size > 1:
            require_sample_wise(model.task, key)
            timeout: timedelta | None = getattr(comm.fabric.strategy, "_timeout", None)
            groups = [  # every rank must take part in the making of every group
                dist.new_group(list(range(first, first + size)), timeout=timeout)
                for first in range(0, comm.world, size)
            ]
            mine = groups[comm.rank // size]
            assert not isinstance(mine, int), "this rank is in its own group"
            self.group = mine

    @property
    def leads(self) -> bool:
        """Whether this rank keeps the clients' states and hands in their uploads."""
        return not self.place

    def assign(self, cohort: Sequence[int], costs: Sequence[float], homes: Sequence[int]) -> list[list[int]]:
        """Give each client to a team: `shares[rank]` lists the clients that `rank` leads, none for other members."""
        teams = assign(cohort, costs, self.comm.world // self.size, [home // self.size for home in homes])
        return [teams[rank // self.size] if rank % self.size == 0 else [] for rank in range(self.comm.world)]

    def hand_in(self, visits: Iterator[Upload]) -> Iterator[Upload]:
        """The uploads of this rank's clients; other members of the team work on them too but have none to hand in.

        A team visits all its clients before it meets the others: ranks cannot be in step with their team and with the
        world at the same time.
        """
        if self.group is None:
            return visits
        self.comm.in_step_with = self.group
        self.model.gradient_by = self.gradient
        try:
            held = []
            for upload in visits:
                if self.leads:
                    held.append(upload)
            return iter(held)
        finally:
            self.comm.in_step_with = None
            self.model.gradient_by = LiveModel.backpropagate

    def state(self, get: Callable[[], State | None]) -> State | None:
        """The state of a client, which its leader has; on every member while the team works together."""
        if self.comm.in_step_with is None:
            return get()
        state = get() if self.leads else None
        payload = torch.frombuffer(bytearray(encode_state(state)), dtype=torch.uint8) if state else torch.empty(0)
        size = torch.tensor(len(payload))
        with self.comm.reporting():
            dist.broadcast(size, self.leader, self.group)
            if not size:
                return None
            if not self.leads:
                payload = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(payload, self.leader, self.group)
        return state if self.leads else decode_state(payload.numpy().tobytes())

    def gradient(self, model: LiveModel, batch: Batch, loss: Callable[[Batch], Tensor] | None = None) -> Tensor:
        """Fill the model's `grad` with the gradient of the whole batch, of which each member computes a part.

        An algorithm's own loss is not split, since it may do more than return a mean over samples: every member
        computes it whole. The mean of their gradients keeps the members alike, also where hardware is not exact.
        """
        if loss is not None:
            value, share = model.backpropagate(batch, loss, 1 / self.size), 1 / self.size
        else:
            parts = batch[0].tensor_split(self.size)[self.place], batch[1].tensor_split(self.size)[self.place]
            share = len(parts[1]) / len(batch[1])
            # a member without a sample takes one that does not count: all draw the same random numbers, if any
            value = model.backpropagate(parts if share else (batch[0][:1], batch[1][:1]), None, share)
        value = value.to(model.grad.dtype) * share
        with self.comm.reporting():
            dist.all_reduce(model.grad, group=self.group)
            dist.all_reduce(value, group=self.group)
        return value
