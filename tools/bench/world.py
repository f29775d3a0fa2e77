"""What a round costs beyond training when there are very many ranks: own work, collective volume and memory.

The work is measured in CPU seconds, which depend little on other processes: that of the assignment alone, and that of
a whole round of rank 0 with torch's fake process group, whose collectives do nothing. Its ten clients have 8 samples
and a linear model. Bytes and memory are computed from the sizes of the tensors. No other rank is started and no network
is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from federation import RandomImages, make_loop
from lightning.fabric import Fabric
from measure import Part, Spread, take_turns
from torch.testing._internal.distributed.fake_pg import FakeStore

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.comm.exact_mean import ExactMean
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.engine.cohort import Plan, assign, draw_cohort
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.metrics import visit_report
from pfl_lightning.nets import MLP

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


@contextmanager
def pretended_ranks(world: int) -> Iterator[None]:
    """This process is rank 0 of so many. Collectives return at once, and nobody answers."""
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        stack.enter_context(patch.object(Fabric, "world_size", property(lambda self: world)))
        stack.enter_context(patch.object(dist, "new_group", lambda **_: None))
        stack.enter_context(patch.object(Comm, "gather", lambda ranks, value: [value] * ranks.world))
        stack.enter_context(patch.object(visit_report, "_require_equal", lambda *_: None))
        yield


def round_seconds(loop: FederatedFabricLoop) -> float:
    """CPU seconds of rank 0 in a round in which it trains ten clients."""
    everyone = list(range(loop.data.num_clients))
    if loop.durations:  # the others did not tell how long their clients took
        loop.durations.enter(everyone, loop.data.train_sizes.tolist(), [1.0] * len(everyone))
    begin = time.process_time()
    loop.round()
    return time.process_time() - begin


def rounds_of(world: int, turns: int) -> Spread:
    """CPU seconds of rank 0 in a round; the first round does not count."""
    with pretended_ranks(world):
        data = RandomImages((1, 8, 8), [8] * (CLIENTS_PER_RANK * world), 2, pool=1000)
        fabric = Fabric(accelerator="cpu", devices=1)
        loop = make_loop(data, partial(MLP, hidden=()), FedAvg(), fabric, local_epochs=1)
        return Spread.of([round_seconds(loop) for _ in range(1 + turns)][1:])


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
    part = Part("world", "CPU seconds of a rank in a round with ten clients per rank", axis="seconds")
    options = part.options()
    worlds = WORLDS[:2] if options.quick else WORLDS
    rounds = iter(range(1, 10**6))
    turns = options.turns or (2 if options.quick else 9)
    things: dict[str, Callable[[], float]] = {
        str(world): lambda world=world: plan_seconds(world, next(rounds))  # type: ignore[misc]
        for world in worlds
    }
    found = take_turns(things, turns)
    for world in worlds:
        part.rows.append(
            {
                "ranks": f"{world:,}",
                "clients in a round": f"{world * CLIENTS_PER_RANK:,}",
                "assignment, CPU ms": Spread.of(found[str(world)]).text(1, 1000),
                "a whole round, CPU ms": rounds_of(world, turns).text(1, 1000),
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
