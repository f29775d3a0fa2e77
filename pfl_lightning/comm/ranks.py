"""The ranks of a run, seen from one of them: they decide, stop and fail together, and add up their tensors."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from safetensors.torch import load as decode_state
from safetensors.torch import save as encode_state
from torch import Tensor

from pfl_lightning.foundation.errors import ConfigError, LostRankError, RunError, StopRound
from pfl_lightning.foundation.signals import StopSignals
from pfl_lightning.foundation.state import State

T = TypeVar("T")
ROLL_CALL = timedelta(seconds=5)
MOST_FLAGS = 2
"""Flags in one agreement. All agreements have the same size, because ranks may meet in different ones."""
IN_FLIGHT_BYTES = 1 << 28
"""Upper bound on the bytes in flight while client states migrate."""


class Comm:
    """All ranks of a run: agreements and collectives. Every rank must make the same calls in the same order.

    Args:
        fabric: a launched Fabric.
        stop: tells whether this process was asked to stop.

    Attributes:
        rank: the number of this process, from 0.
        world: the number of processes.
        round: the present round, for error messages.
        stoppable: whether a round is running that can be given up. It is the same on every rank.
        hosts: the host name of each rank.
        waited: seconds that this rank has waited for others so far.
    """

    def __init__(self, fabric: Fabric, stop: StopSignals | None = None) -> None:
        self.fabric, self.stop = fabric, stop or StopSignals()
        self.waited = 0.0
        self.rank, self.world = fabric.global_rank, fabric.world_size
        self.round, self.stoppable = 0, False
        self.hosts = ["an unknown node"] * self.world
        self._roll_call = None
        if self.world > 1:
            with self.name_lost_rank():
                # a second set of connections: those of a failed collective cannot be used again
                self._roll_call = dist.new_group(backend="gloo", timeout=ROLL_CALL)
        self.hosts = self.gather(socket.gethostname())

    def leave_round(self) -> None:
        """Called between batches by a rank asked to stop. Raises `StopRound` on every rank during a round."""
        self.agree()

    def agree(self, *flags: bool) -> list[bool]:
        """Decide together whether to go on, and learn which of `flags` is true on any rank.

        It precedes every collective of a round. A rank that was asked to stop in the middle of its work does not
        come to that collective, so the others must not wait for it.

        Raises:
            StopRound: on every rank, if any rank was asked to stop.
        """
        votes = [self.stoppable and bool(self.stop.seen), *flags, *[False] * (MOST_FLAGS - len(flags))]
        if self.world > 1 and (self.stoppable or flags):
            started = time.perf_counter()
            votes = self.any_rank(votes)
            self.waited += time.perf_counter() - started
        if votes[0]:
            self.stoppable = False
            raise StopRound
        return votes[1 : len(flags) + 1]

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Around every collective: the ranks agree to go on, and a rank that fails is named."""
        self.agree()
        with self.name_lost_rank():
            yield

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in the order of the ranks, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        with self.name_lost_rank():
            dist.all_gather_object(values, value)
        return values

    def run_on_rank_zero(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0 only. Every rank gets its answer, or its error."""
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

    def any_rank(self, votes: list[bool], group: dist.ProcessGroup | None = None) -> list[bool]:
        """Which of the votes is true on any rank (of the group)."""
        answer = torch.tensor(votes, dtype=torch.uint8)
        with self.name_lost_rank():
            dist.all_reduce(answer, dist.ReduceOp.MAX, group)
        return [bool(vote) for vote in answer.tolist()]

    def all_sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place. Exact for integers."""
        if self.world > 1:
            with self.collective():
                dist.all_reduce(tensor)
        return tensor

    def merge_table(self, table: Tensor) -> Tensor:
        """Complete a float64 table on every rank. Each rank has filled its own rows and left zeros elsewhere.

        The bits are added as integers, so nothing is rounded.
        """
        self.all_sum(table.view(torch.int64))
        return table

    def broadcast_each(
        self, local: Mapping[int, Tensor], owner: Mapping[int, int], like: Tensor
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the tensor of every client in ascending order, on every rank, one at a time.

        Args:
            local: the clients of this rank and their tensors.
            owner: client to the rank that has its tensor.
            like: a tensor of the same shape and type.
        """
        for client in sorted(owner):
            value = local[client] if client in local else torch.empty_like(like)
            if self.world > 1:
                value = value.contiguous()
                with self.collective():
                    dist.broadcast(value, owner[client])
            yield client, value

    def reduce_to(self, tensor: Tensor, rank: int) -> None:
        """Sum over ranks, in place, on one rank only. The others are left with anything."""
        if self.world > 1:
            with self.collective():
                dist.reduce(tensor, rank)

    def require_equal(self, fingerprint: int, name: str) -> None:
        """Raise a `RunError` that names the ranks unless `fingerprint` is the same on every rank."""
        if self.world == 1:
            return
        found = self.gather(fingerprint)
        if len(set(found)) > 1:
            odd = [str(rank) for rank, value in enumerate(found) if value != found[0]]
            error = RunError(f"{name} differs between rank 0 and rank {', '.join(odd)}")
            error.collective = True
            raise error

    def move_states(self, states: MutableMapping[int, State], moves: Sequence[tuple[int, int, int]]) -> None:
        """Send client states to the ranks that need them next.

        Args:
            states: the states on this rank. Those that leave are removed, those that arrive are added.
            moves: `(client, from, to)`, the same list on every rank.
        """
        with self.collective():
            self._move(states, moves)

    def _move(self, states: MutableMapping[int, State], moves: Sequence[tuple[int, int, int]]) -> None:
        sending: list[tuple[dist.Work | None, Tensor]] = []
        for client, source, target in moves:
            if self.rank == source:
                state = {name: tensor.contiguous() for name, tensor in states.pop(client).items()}
                payload = torch.frombuffer(bytearray(encode_state(state)), dtype=torch.uint8)
                for part in (torch.tensor([payload.numel()]), payload):
                    sending.append((dist.isend(part, target), part))
                if sum(part.numel() for _, part in sending) > IN_FLIGHT_BYTES:
                    _wait_for(sending)
            elif self.rank == target:
                size = torch.zeros(1, dtype=torch.int64)
                dist.recv(size, source)
                payload = torch.empty(int(size), dtype=torch.uint8)
                dist.recv(payload, source)
                states[client] = decode_state(payload.numpy().tobytes())
        _wait_for(sending)

    @contextmanager
    def name_lost_rank(self) -> Iterator[None]:
        """Around communication: if a rank is lost, the error names it."""
        try:
            yield
        except RuntimeError as error:
            if self.world == 1 or isinstance(error, RunError):
                raise
            raise self._lost(str(error)) from error

    def _lost(self, reason: str) -> LostRankError:
        """Find out which rank does not answer. gloo only says how long it has waited."""
        place = f"in round {self.round}" if self.round else "before the first round"
        if not re.search("timed ?out|timeout", reason, re.IGNORECASE):
            # the launcher knows which rank ended: it reports that rank and ends the others
            told = self.stop.wait(1.0)
            text = f"rank {self.rank} on {self.hosts[self.rank]} lost contact with another rank {place}: it has ended"
            return LostRankError(text, quiet=told)
        missing: list[int] = []
        try:
            assert not isinstance(self._roll_call, int), "every rank is in the group"
            dist.monitored_barrier(self._roll_call, ROLL_CALL, wait_all_ranks=True)
        except RuntimeError as error:
            if self.rank and "send operation" not in str(error):  # rank 0 answered, so it knows who is missing
                quiet = LostRankError("another rank does not answer; rank 0 says which", quiet=True)
                quiet.collective = True
                return quiet
            named = re.search(r"Ranks ([\d, ]+) failed", str(error))
            missing = [int(rank) for rank in named[1].split(",")] if named else [0]
        who = " and ".join(f"rank {rank} on {self.hosts[rank]}" for rank in missing) or "a rank"
        return LostRankError(
            f"{who} did not answer {place} within fabric.timeout: it is stuck, or this time is too short"
        )


def _wait_for(sending: list[tuple[dist.Work | None, Tensor]]) -> None:
    """Every rank goes through the moves in the same order, so the first unfinished one can always finish."""
    for work, _ in sending:
        assert work is not None
        work.wait()
    sending.clear()
