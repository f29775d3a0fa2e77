"""What a round costs beyond training when there are very many ranks: assignment, collective volume and memory.

The assignment is measured in CPU seconds, which depend little on other processes. Bytes and memory are computed from
the sizes of the tensors. No other rank is started and no network is used.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from measure import Part, Spread, take_turns

from pfl_lightning.comm.exact_mean import ExactMean
from pfl_lightning.engine.cohort import Plan, assign, draw_cohort

WORLDS = (8, 64, 1024)
PARAMETERS = {"1 M": 10**6, "25 M": 25 * 10**6, "1 B": 10**9}
CLIENTS_PER_RANK = 10
GOAL = 0.2
FLOAT, INTEGER = 4, 8


def plan_seconds(world: int, round_: int) -> float:
    """CPU seconds of the cohort and its assignment, which every rank computes for all clients."""
    clients = world * CLIENTS_PER_RANK
    rng = np.random.default_rng(round_)
    costs, homes = rng.lognormal(3, 1, clients).tolist(), rng.integers(-1, world, clients).tolist()
    begin = time.process_time()
    cohort = draw_cohort(0, round_, clients, 1.0)
    assert len(Plan(assign(cohort, costs, world, homes)).owner) == clients
    return time.process_time() - begin


def reduce_bytes(world: int, parameters: int, partial: bool) -> int:
    """Bytes that a rank sends in a ring all-reduce of the exact sums, which is the least that any algorithm sends."""
    payload = INTEGER * (1 + parameters) * (2 if partial else 1)
    return 2 * (world - 1) * payload // world


def resident_bytes(parameters: int, partial: bool) -> int:
    """Bytes of a rank for the model: vector, gradient, momentum, mask, server, initial model, upload and exact sums."""
    return parameters * (6 * FLOAT + 1 + INTEGER * (2 if partial else 1))


def gibibytes(count: int) -> str:
    return f"{count / 2**30:.3g}"


def main() -> None:
    part = Part("world", "CPU seconds of assigning ten clients per rank", axis="seconds")
    options = part.options()
    worlds = WORLDS[:2] if options.quick else WORLDS
    rounds = iter(range(1, 10**6))
    things = {str(world): lambda world=world: plan_seconds(world, next(rounds)) for world in worlds}
    found = take_turns(things, options.turns or (2 if options.quick else 9))
    for world in worlds:
        part.rows.append(
            {
                "ranks": f"{world:,}",
                "clients in a round": f"{world * CLIENTS_PER_RANK:,}",
                "assignment, CPU ms": Spread.of(found[str(world)]).text(1, 1000),
                "goal": f"{1000 * GOAL:.0f}",
            }
        )
        for name, count in PARAMETERS.items():
            part.second_rows.append(
                {
                    "ranks": f"{world:,}",
                    "parameters": name,
                    "sent per rank and round, GiB": gibibytes(reduce_bytes(world, count, False)),
                    "with masks": gibibytes(reduce_bytes(world, count, True)),
                    "memory per rank, GiB": gibibytes(resident_bytes(count, False)),
                    "memory with masks": gibibytes(resident_bytes(count, True)),
                }
            )
    check_sums()
    part.finish()


def check_sums(parameters: int = 1000) -> None:
    """The bytes above are those of the real sums."""
    total = ExactMean({"vector": torch.zeros(parameters)})
    assert total.sums.nbytes == INTEGER * (1 + parameters)
    total.weigh_each_entry()
    assert total.entry_weights is not None
    assert total.entry_weights.nbytes == INTEGER * parameters


if __name__ == "__main__":
    main()
