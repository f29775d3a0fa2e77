"""Run a function on several CPU ranks of this machine, as a user's job would, and get every rank's answer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import IO, Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric

from pfl_lightning.comm.forked_ranks import ForkedRanks

_HERE: list[Fabric] = []
"""On a rank: its Fabric."""


def run_on_ranks(function: Callable[[Fabric], Any], world: int) -> list[Any]:
    """Call `function(fabric)` on each rank and return the list of results.

    Called on a rank, the ranks that are there already do the work: several runs cost one start of processes.
    """
    if _HERE:
        (fabric,) = _HERE
        assert fabric.world_size == world
        return _answers(fabric, function)
    torch.set_num_threads(1)
    if world == 1:
        fabric = Fabric(accelerator="cpu", devices=1)
        return [fabric.launch(function)]
    fabric = Fabric(accelerator="cpu", devices=world, strategy=ForkedRanks())
    with TemporaryFile() as file:
        fabric.launch(_gather, function, file)  # type: ignore[arg-type]
        file.seek(0)
        answers: list[Any] = pickle.load(file)
    return answers


def _gather(fabric: Fabric, function: Callable[[Fabric], Any], file: IO[bytes]) -> None:
    _HERE.append(fabric)
    answers = _answers(fabric, function)
    if fabric.global_rank == 0:
        # as a return value they would fill a pipe that nobody reads before this process has ended
        pickle.dump(answers, file)
        file.flush()


def _answers(fabric: Fabric, function: Callable[[Fabric], Any]) -> list[Any]:
    answers: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(answers, function(fabric))
    return answers
