"""torch operations of a client step with `loop.clients_per_step`, which a GPU would have to start one by one.

The ten clients of the first round on Fashion10k (100 clients, Dirichlet 0.3, seed 0) train with FedAvg for five epochs,
one by one and all together. Nothing is timed, and every run gives the same numbers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from federation import LR, MOMENTUM, one_rank
from measure import Part
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.comm import exact_mean
from pfl_lightning.data.sets import Fashion10k
from pfl_lightning.engine.vectorized import Vectorized
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.model.local_training import batch_sizes
from pfl_lightning.nets import CNN, MLP
from pfl_lightning.tasks import Classification

GOAL, CLIENTS, EPOCHS, BATCH = 8, 10, 5, 32
FREE = {
    *("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"),
    "_local_scalar_dense",
}
"""Operations that start nothing on a GPU and are not marked as views."""


class Counting(TorchDispatchMode):
    """Counts the operations of this thread: all of them, and those that compute something."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found["all"] += 1
        self.found["work"] += not func.is_view and func.overloadpacket.__name__ not in FREE
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(found: Counter[str]) -> Iterator[None]:
    """Count in this thread and in those that it starts."""
    run = threading.Thread.run

    def counted_run(thread: threading.Thread) -> None:
        with Counting(found):
            run(thread)

    with patch.object(threading.Thread, "run", counted_run), Counting(found):
        yield


def count(net: Any, clients_per_step: int) -> tuple[Counter[str], Counter[str], int]:
    """The operations of a round's training, those of the whole round, and the steps of all clients."""
    data = Fashion10k(100)
    data.setup(0)
    task = Classification(net, lambda p: SGD(p, lr=LR, momentum=MOMENTUM))
    settings = {"participation": CLIENTS / 100, "local_epochs": EPOCHS, "batch_size": BATCH, "eval_every": 0}
    config = LoopConfig(rounds=1, clients_per_step=clients_per_step, **settings)  # type: ignore[arg-type]
    loop = FederatedFabricLoop(one_rank(), task, FedAvg(), data, config, 0)
    training, whole = Counter[str](), Counter[str]()

    def watched(work: Callable[..., None], *args: Any) -> None:
        before = Counter(whole)
        work(*args)
        training.update(whole - before)

    owner = (loop.engine, "fit") if isinstance(loop.engine, Vectorized) else (loop.engine.client, "train_epochs")
    # the mean of models takes larger pieces on a GPU than on a CPU
    with (
        patch.object(exact_mean, "CPU_CHUNK", exact_mean.CHUNK),
        counted(whole),
        patch.object(*owner, partial(watched, getattr(*owner))),
    ):
        record = loop.round()
    sizes = data.train_sizes[record.cohort].tolist()
    return training, whole, sum(EPOCHS * len(batch_sizes(size, BATCH)) for size in sizes)


def main() -> None:
    part = Part("operations", "torch operations of a client step, one client or ten at a time")
    options = part.options()
    for net in (MLP,) if options.quick else (MLP, CNN):
        for clients in (1, CLIENTS):
            training, whole, steps = count(net, clients)
            part.rows.append(
                {
                    "net": net.__name__,
                    "clients at a time": clients,
                    "operations of a step": f"{training['work'] / steps:.1f}",
                    "goal": "" if clients == 1 else GOAL,
                    "with views": f"{training['all'] / steps:.1f}",
                    "operations of a visit besides": f"{(whole['work'] - training['work']) / CLIENTS:.0f}",
                }
            )
    part.finish()


if __name__ == "__main__":
    main()
