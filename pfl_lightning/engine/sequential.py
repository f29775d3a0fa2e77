"""The default engine, one client after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from typing_extensions import override

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.engine.cohort import Plan, assign
from pfl_lightning.engine.engine import Engine, Invitation, VisitResult
from pfl_lightning.engine.visit import visit
from pfl_lightning.model.client import ClientModule


class Sequential(Engine):
    """One client after the other.

    Args:
        client: the live model of this rank.
        algorithm: how clients cooperate.
        comm: the ranks.
    """

    def __init__(self, client: ClientModule, algorithm: Algorithm, comm: Comm) -> None:
        self.client, self.algorithm, self.comm = client, algorithm, comm

    @override
    def plan(self, cohort: Sequence[int], costs: Sequence[float], homes: Sequence[int]) -> Plan:
        return Plan(assign(cohort, costs, self.comm.world, homes))

    @override
    def run(self, plan: Plan, invite: Callable[[int], Invitation], server: Server) -> Iterator[Sequence[VisitResult]]:
        for client in plan.clients_of[self.comm.rank]:
            yield [visit(self.client, invite(client), self.algorithm, server)]
