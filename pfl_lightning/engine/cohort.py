"""Who takes part in a round, and which rank trains whom."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pfl_lightning.foundation.seeds import derive_seed


def cohort_size(num_clients: int, participation: float) -> int:
    """The number of clients in a round: the rounded fraction of all, at least one."""
    return max(1, round(participation * num_clients))


def draw_cohort(seed: int, round_: int, num_clients: int, participation: float) -> list[int]:
    """The clients of a round in ascending order, drawn uniformly without replacement."""
    size = cohort_size(num_clients, participation)
    if size == num_clients:
        return list(range(num_clients))
    rng = np.random.default_rng(derive_seed(seed, "cohort", round_))
    return sorted(int(i) for i in rng.choice(num_clients, size, replace=False))


def draw_evaluated(seed: int, num_clients: int, sample: int | float | None) -> list[int]:
    """The clients that evaluations test, ascending: the same ones in the whole run.

    Args:
        seed: the run's seed.
        num_clients: the number of clients.
        sample: how many, or the fraction of them. None: all.
    """
    size = num_clients if sample is None else sample
    size = min(num_clients, size) if isinstance(size, int) else cohort_size(num_clients, size)
    if size == num_clients:
        return list(range(num_clients))
    rng = np.random.default_rng(derive_seed(seed, "evaluated clients"))
    return sorted(int(i) for i in rng.choice(num_clients, size, replace=False))


@dataclass(frozen=True)
class Plan:
    """Which rank trains which clients in a round. It is the same on every rank."""

    clients_of: list[list[int]]
    """The clients that each rank owns: it keeps their states and adds their uploads."""

    @cached_property
    def owner(self) -> dict[int, int]:
        """Client to the rank that owns it."""
        return {client: rank for rank, clients in enumerate(self.clients_of) for client in clients}


def assign(clients: Sequence[int], costs: Sequence[float], world: int, homes: Sequence[int]) -> list[list[int]]:
    """Give each client to a rank: the longest client first, always to the least loaded rank.

    Among equally loaded ranks a client prefers its home (the rank that holds its state, -1 for none), which saves a
    migration. The assignment never changes a result.
    """
    clients_of: list[list[int]] = [[] for _ in range(world)]
    loads = [0.0] * world
    least = [(0.0, rank) for rank in range(world)]  # a heap. An entry whose rank has another load by now is ignored
    for cost, client, home in sorted(zip(costs, clients, homes, strict=True), key=lambda item: (-item[0], item[1])):
        while loads[least[0][1]] != least[0][0]:
            heapq.heappop(least)
        load, rank = least[0]
        if 0 <= home < world and loads[home] == load:
            rank = home
        loads[rank] += cost
        heapq.heappush(least, (loads[rank], rank))
        clients_of[rank].append(client)
    return clients_of
