"""Who takes part in a round, which rank trains whom, and where every random number comes from."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence

import numpy as np


def derive_seed(seed: int, *path: int | str) -> int:
    """A seed for one purpose, e.g. `derive_seed(7, "shuffle", round, client)`.

    It depends on nothing but its arguments: not on the rank, the number of ranks or what was drawn before.
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def cohort_size(num_clients: int, participation: float) -> int:
    """How many clients take part in a round: the rounded share of all, at least one."""
    return max(1, round(participation * num_clients))


def draw_cohort(seed: int, round_: int, num_clients: int, participation: float) -> list[int]:
    """The clients of a round in ascending order, drawn uniformly without replacement."""
    size = cohort_size(num_clients, participation)
    if size == num_clients:
        return list(range(num_clients))
    rng = np.random.default_rng(derive_seed(seed, "cohort", round_))
    return sorted(int(i) for i in rng.choice(num_clients, size, replace=False))


def assign(clients: Sequence[int], costs: Sequence[float], world: int, homes: Sequence[int]) -> list[list[int]]:
    """Give each client to a rank: the longest first, always to the least loaded rank.

    Among equally loaded ranks a client's home (the rank that holds its state, -1 for none) is preferred, which saves
    a move. Who trains where never changes a result.
    """
    shares: list[list[int]] = [[] for _ in range(world)]
    loads = [(0.0, rank) for rank in range(world)]
    for cost, client, home in sorted(zip(costs, clients, homes, strict=True), key=lambda item: (-item[0], item[1])):
        load, rank = loads[0]
        if (load, home) in loads:
            loads.remove((load, home))
            heapq.heapify(loads)
            rank = home
        else:
            heapq.heappop(loads)
        heapq.heappush(loads, (load + cost, rank))
        shares[rank].append(client)
    return shares
