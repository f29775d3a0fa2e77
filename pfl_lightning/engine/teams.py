"""Large clients, few of them: a team of ranks trains each client together (`loop.ranks_per_client`).

The world is cut into teams of consecutive ranks. All members of a team visit the same clients in lockstep and do the
same things. Only the gradient of the task's loss is divided: each member computes it for its part of the batch, and
the parts are added up. The first member, the leader, owns the clients: it keeps their states and adds their uploads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from safetensors.torch import load as decode_state
from safetensors.torch import save as encode_state
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.engine.cohort import Plan, assign
from pfl_lightning.engine.engine import Invitation, VisitResult
from pfl_lightning.engine.per_sample import require_per_sample
from pfl_lightning.engine.sequential import Sequential
from pfl_lightning.engine.visit import visit
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.state import State
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.flat_model import Loss
from pfl_lightning.model.local_training import LocalTraining
from pfl_lightning.tasks.task import Batch, Task

KEY = "loop.ranks_per_client"


class Team:
    """The ranks that train a client together, seen from one of them.

    Args:
        comm: all ranks.
        size: the number of ranks in a team.

    Attributes:
        place: the place of this rank in its team. The leader has 0.
        leader: the rank of the leader.
        training: whether the team is visiting clients, so that its members act in lockstep.
    """

    def __init__(self, comm: Comm, size: int) -> None:
        require(comm.world % size == 0, KEY, size, f"a number that divides the number of ranks, {comm.world}")
        self.comm, self.size = comm, size
        self.place = comm.rank % size
        self.leader = comm.rank - self.place
        self.training = False
        timeout: timedelta | None = getattr(comm.fabric.strategy, "_timeout", None)
        groups = [  # every rank must take part in making every group
            dist.new_group(list(range(first, first + size)), timeout=timeout) for first in range(0, comm.world, size)
        ]
        mine = groups[comm.rank // size]
        assert not isinstance(mine, int), "this rank is in its own group"
        self.group = mine

    def check_for_stop(self) -> None:
        """Between batches the members leave together: the others would wait for one that left alone."""
        asked = bool(self.comm.stop.seen)
        if self.training:
            asked = self.comm.any_rank([asked], self.group)[0]
        if asked:
            self.comm.agree()

    def share_state(self, state: State | None) -> State | None:
        """Give the leader's state of a client to every member."""
        leads = not self.place
        payload = torch.frombuffer(bytearray(encode_state(state)), dtype=torch.uint8) if state else torch.empty(0)
        size = torch.tensor(len(payload))
        with self.comm.name_lost_rank():
            dist.broadcast(size, self.leader, self.group)
            if not size:
                return None
            if not leads:
                payload = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(payload, self.leader, self.group)
        return state if leads else decode_state(payload.numpy().tobytes())

    def sum(self, *tensors: Tensor) -> None:
        """Add up tensors over the members, in place."""
        with self.comm.name_lost_rank():
            for tensor in tensors:
                dist.all_reduce(tensor, group=self.group)


class TeamClient(ClientModule):
    """A live model that shares the gradient of the task's loss with the other members of its team."""

    def __init__(
        self, task: Task, data: FederatedData, local: LocalTraining, fabric: Fabric, seed: int, team: Team
    ) -> None:
        super().__init__(task, data, local, fabric, seed, team.comm.stop)
        self.team = team

    @override
    def check_for_stop(self) -> None:
        self.team.check_for_stop()

    @override
    def compute_gradient(self, batch: Batch, loss: Loss | None = None) -> Tensor:
        """Fill `grad` with the gradient of the whole batch. Each member computes a part of it.

        An algorithm's own loss is not split, because it may be more than a mean over samples. Every member computes it
        whole. The mean of their gradients keeps the members equal even where the hardware is not exact.
        """
        team = self.team
        if not team.training:
            return self.backpropagate(batch, loss)
        if loss is not None:
            fraction = 1 / team.size
            value = self.backpropagate(batch, loss, fraction)
        else:
            x, y = (part.tensor_split(team.size)[team.place] for part in batch)
            fraction = len(y) / len(batch[1])
            # a member without a sample takes one that does not count, so that all draw the same random numbers
            value = self.backpropagate((x, y) if fraction else (batch[0][:1], batch[1][:1]), None, fraction)
        value = value.to(self.grad.dtype) * fraction
        team.sum(self.grad, value)
        return value


class Teams(Sequential):
    """Several ranks per client.

    Args:
        team: the team of this rank.
        client: the live model of this rank.
        algorithm: how clients cooperate.
        comm: all ranks.
    """

    def __init__(self, team: Team, client: TeamClient, algorithm: Algorithm, comm: Comm) -> None:
        super().__init__(client, algorithm, comm)
        self.team = team
        require_per_sample(client.task, KEY)
        client.task.trained.switch_off()  # a member sees only its part of a batch

    @override
    def plan(self, cohort: Sequence[int], costs: Sequence[float], homes: Sequence[int]) -> Plan:
        size, world = self.team.size, self.comm.world
        teams = assign(cohort, costs, world // size, [home // size for home in homes])
        return Plan([teams[rank // size] if rank % size == 0 else [] for rank in range(world)])

    @override
    def run(self, plan: Plan, invite: Callable[[int], Invitation], server: Server) -> Iterator[Sequence[VisitResult]]:
        """All members train the leader's clients. Only the leader has results."""
        self.team.training = True
        try:
            for number in plan.clients_of[self.team.leader]:
                invitation = invite(number)
                invitation = invitation._replace(state=self.team.share_state(invitation.state))
                result = visit(self.client, invitation, self.algorithm, server)
                if not self.team.place:
                    yield [result]
        finally:
            self.team.training = False
