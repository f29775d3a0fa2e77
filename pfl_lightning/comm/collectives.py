"""Collectives: sums and tables over ranks, broadcasts, and the migration of client states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import torch
import torch.distributed as dist
from safetensors.torch import load as decode_state
from safetensors.torch import save as encode_state
from torch import Tensor

from pfl_lightning.comm.ranks import Ranks
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.foundation.state import State

IN_FLIGHT_BYTES = 1 << 28
"""Upper bound on the bytes in flight while client states migrate."""


class Comm(Ranks):
    """The collectives of one rank. Every rank must make the same calls in the same order."""

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


def _wait_for(sending: list[tuple[dist.Work | None, Tensor]]) -> None:
    """Every rank goes through the moves in the same order, so the first unfinished one can always finish."""
    for work, _ in sending:
        assert work is not None
        work.wait()
    sending.clear()
