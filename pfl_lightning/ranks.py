"""What ranks do together besides adding up: stop together, decide together, fail together."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric import Fabric

from pfl_lightning.errors import ConfigError, LostRankError, RunError, StopRound
from pfl_lightning.signals import StopSignals
from pfl_lightning.stopwatch import Stopwatch

T = TypeVar("T")
ROLL_CALL = timedelta(seconds=5)


@dataclass
class Ranks:
    """The processes of a run, seen from one of them. Every rank must make the same calls in the same order."""

    fabric: Fabric
    round: int = 0
    stop: StopSignals = field(default_factory=StopSignals)
    stoppable: bool = False
    """Whether a round is under way that can be given up; the same on every rank."""
    in_step_with: dist.ProcessGroup | None = None
    """The ranks with which this one trains a client together at the moment; None: it works on its own."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Told how long this rank waits for the others."""

    def __post_init__(self) -> None:
        """Keep a second set of connections for the roll call: those of a collective that failed are of no use."""
        self.hosts = ["an unknown node"] * self.world
        self._roll_call = None
        if self.world > 1:
            with self.reporting():
                self._roll_call = dist.new_group(backend="gloo", timeout=ROLL_CALL)
        self.hosts = self.gather(socket.gethostname())

    @property
    def rank(self) -> int:
        """This process' number, from 0."""
        return self.fabric.global_rank

    @property
    def world(self) -> int:
        """How many processes there are."""
        return self.fabric.world_size

    def check(self) -> None:
        """A moment at which a round can be given up: between two batches.

        Ranks in step with each other leave together: one that left alone would be waited for at the next batch.
        """
        asked = self.stop.requested
        if self.in_step_with is not None:
            asked = self._any(asked, self.in_step_with)
        if asked:
            self._agree()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around every collective. Before it the ranks agree whether to go on: a rank that was asked to stop in the
        middle of its work does not come, and must be neither waited for nor lost. A rank that fails is reported.
        """
        self._agree()
        with self.reporting():
            yield

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        with self.reporting():
            dist.all_gather_object(values, value)
        return values

    def on_first(self, work: Callable[[], T]) -> T:
        """Do something on rank 0 only; every rank gets the answer, or the error."""
        answer: tuple[T | None, ConfigError | RunError | None] = (None, None)
        if self.rank == 0:
            try:
                answer = work(), None
            except (ConfigError, RunError) as error:
                answer = None, error
        value, problem = self.gather(answer)[0]
        if problem is not None:
            problem.collective = True
            raise problem
        return value  # type: ignore[return-value]

    def _agree(self) -> None:
        if not self.stoppable:
            return
        with self.watch.phase("wait"):
            asked = self._any(self.stop.requested)
        if asked:
            self.stoppable = False
            raise StopRound

    def _any(self, value: bool, group: dist.ProcessGroup | None = None) -> bool:
        """Whether it is true on any rank (of the group)."""
        answer = torch.tensor(value, dtype=torch.uint8)
        if self.world > 1:
            with self.reporting():
                dist.all_reduce(answer, dist.ReduceOp.MAX, group)
        return bool(answer)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Around what other ranks must take part in: a rank that is lost is named."""
        try:
            yield
        except RuntimeError as error:
            if self.world == 1 or isinstance(error, RunError):
                raise
            raise self._lost(str(error)) from error

    def _lost(self, reason: str) -> LostRankError:
        """Find out who does not answer; gloo itself only says how long it has waited."""
        place = f"in round {self.round}" if self.round else "before the first round"
        if not re.search("timed ?out|timeout", reason, re.IGNORECASE):
            # whoever started the ranks knows which one ended, says so, and ends the others
            told = self.stop.wait(1.0)
            text = f"rank {self.rank} on {self.hosts[self.rank]} lost contact with another rank {place}: it has ended"
            return LostRankError(text, quiet=told)
        missing: list[int] = []
        try:
            assert not isinstance(self._roll_call, int), "every rank is in the group"
            dist.monitored_barrier(self._roll_call, ROLL_CALL, wait_all_ranks=True)
        except RuntimeError as error:
            if self.rank and "send operation" not in str(error):  # rank 0 has heard us, so it knows who is missing
                quiet = LostRankError("another rank does not answer; rank 0 says which", quiet=True)
                quiet.collective = True
                return quiet
            named = re.search(r"Ranks ([\d, ]+) failed", str(error))
            missing = [int(rank) for rank in named[1].split(",")] if named else [0]
        who = " and ".join(f"rank {rank} on {self.hosts[rank]}" for rank in missing) or "a rank"
        return LostRankError(f"{who} did not answer {place} within fabric.timeout: it is stuck, or that is too short")
