"""What all jobs of other frameworks share: the work, and how they tell how long a round took.

A job runs in the environment of its framework, which has torch but nothing of ours:

    python pfl_research.py work.pt

It trains two rounds and prints the seconds of the second one as its last line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn


@dataclass
class Job:
    """The samples of each client, the first model, and how clients train."""

    clients: list[tuple[Tensor, Tensor]]
    net: nn.Module
    epochs: int
    batch_size: int
    lr: float
    momentum: float


@cache
def read_job(threads: int) -> Job:
    """The work in the file that the command line names. Workers that the job starts find it in their environment."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import plain_nets

    torch.set_num_threads(threads)
    path = os.environ.get("PEER_WORK") or str(Path(sys.argv[1]).resolve())
    os.environ["PEER_WORK"] = path
    work = torch.load(path)
    x, y = work["x"], work["y"]
    net = plain_nets.cnn(x.shape[1], x.shape[2])
    for own, first in zip(net.parameters(), work["initial"], strict=True):
        own.data.copy_(first)
    settings = {name: work[name] for name in ("epochs", "batch_size", "lr", "momentum")}
    return Job([(x[indices], y[indices]) for indices in work["clients"]], net, **settings)


class RoundClock:
    """The moments at which rounds end."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def tick(self) -> None:
        self.moments.append(time.perf_counter())

    def tell(self) -> None:
        """Print the seconds of the last round."""
        print(json.dumps({"seconds": self.moments[-1] - self.moments[-2]}), flush=True)
