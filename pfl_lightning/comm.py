"""What ranks say to each other: exact weighted means, sums of disjoint tables, states that change rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from safetensors.torch import load as decode_state
from safetensors.torch import save as encode_state
from torch import Tensor

from pfl_lightning.exact_mean import LIMIT, ExactMean, Upload
from pfl_lightning.ranks import Ranks

IN_FLIGHT = 1 << 28
"""Bytes of client states that are on their way at once."""


@dataclass
class Comm(Ranks):
    """The collectives of one rank. Every rank must make the same calls in the same order."""

    cohort: list[int] = field(default_factory=list)
    """The clients of the round, ascending."""
    owner: dict[int, int] = field(default_factory=dict)
    """Which rank trains each of them."""

    def open_round(self, round_: int, shares: Sequence[Sequence[int]]) -> None:
        """Note who is trained where in this round."""
        self.round = round_
        self.owner = {client: rank for rank, clients in enumerate(shares) for client in clients}
        self.cohort = sorted(self.owner)

    def all_sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place. Exact for integers."""
        with self.together():
            if self.world > 1:
                dist.all_reduce(tensor)
        return tensor

    def all_same(self, tensor: Tensor) -> bool:
        """Whether an int64 tensor is the same on every rank."""
        if self.world == 1:
            return True
        low, high = tensor.clone(), tensor.clone()
        with self.together():
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
        return torch.equal(low, high)

    def merge_rows(self, table: Tensor) -> Tensor:
        """Make a float64 table of which each rank has filled its own rows (zeros elsewhere) whole on every rank.

        The bits are added as integers, so nothing is rounded.
        """
        self.all_sum(table.view(torch.int64))
        return table

    def mean(
        self, uploads: Iterator[Upload], current: Mapping[str, Tensor], per_entry: Iterable[str] = ()
    ) -> dict[str, Tensor]:
        """The exact weighted mean of all ranks' uploads, by name, with one all-reduce.

        Uploads are consumed one by one, so memory does not grow with the cohort.

        Args:
            uploads: this rank's uploads; they may be none.
            current: the present value of each name; kept where nobody shares an entry.
            per_entry: the names of which clients may share a part only.
        """
        total = ExactMean(current, per_entry, self.rank, self.world)
        for upload in uploads:
            if not total.add(upload):
                break
        self.all_sum(total.total)
        return total.result(self.round)

    def table(self, local: Mapping[int, Tensor], like: Tensor) -> Tensor:
        """One row per client of the cohort, in its order, on every rank: for what is small enough to be everywhere.

        Args:
            local: this rank's clients and their rows.
            like: a tensor of a row's shape and type; float64 and integer types are exact.
        """
        table = torch.zeros(len(self.cohort), *like.shape, dtype=like.dtype, device=like.device)
        for row, client in enumerate(self.cohort):
            if client in local:
                table[row] = local[client]
        return self.merge_rows(table) if table.dtype == torch.float64 else self.all_sum(table)

    def each(self, local: Mapping[int, Tensor], like: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Every client's tensor in the order of the cohort, on every rank, one at a time: for pairwise comparison.

        A rank never holds more than its own clients' tensors and one more.
        """
        for client in self.cohort:
            value = local[client] if client in local else torch.empty_like(like)
            with self.together():
                if self.world > 1:
                    value = value.contiguous()
                    dist.broadcast(value, self.owner[client])
            yield client, value

    def mix(self, local: Mapping[int, Tensor], weights: Tensor, like: Tensor) -> dict[int, Tensor]:
        """For each client i of this rank the exact mean of value_j, j in the cohort, with weights[i, j].

        Every rank adds up its own clients' part of each sum, then the parts are reduced to the rank that wants them:
        no rank ever holds the models of others.

        Args:
            local: this rank's clients and their values.
            weights: float64 [k, k] in the order of the cohort, the same on every rank; a row adds up to one at most.
                A client whose row is zero wants nothing and gets nothing.
            like: a tensor of a value's shape and type.
        """
        usable = ExactMean({"value": like[:0]}, [], self.rank, self.world)
        for client, value in local.items():
            if not bool(value.abs().amax() <= LIMIT):
                usable.diverged[self.rank] = client + 1
        self.all_sum(usable.total)
        usable.result(self.round)
        mixed = {}
        for row, client in enumerate(self.cohort):
            if not weights[row].any():
                continue
            total = ExactMean({"value": like}, [], self.rank, self.world)
            for column, other in enumerate(self.cohort):
                if other in local and weights[row, column]:
                    total.add(Upload(other, {"value": local[other]}, float(weights[row, column])))
            with self.together():
                if self.world > 1:
                    dist.reduce(total.total, self.owner[client])
            if client in local:
                mixed[client] = total.result(self.round)["value"]
        return mixed

    def move_states(
        self, states: MutableMapping[int, dict[str, Tensor]], moves: Sequence[tuple[int, int, int]]
    ) -> None:
        """Send client states to the ranks that will need them.

        Args:
            states: what this rank holds; states that leave are removed from it, those that arrive are added.
            moves: `(client, from, to)`, the same list on every rank.
        """
        with self.together():
            self._move(states, moves)

    def _move(self, states: MutableMapping[int, dict[str, Tensor]], moves: Sequence[tuple[int, int, int]]) -> None:
        sending: list[tuple[dist.Work | None, Tensor]] = []
        for client, source, target in moves:
            if self.rank == source:
                state = {name: tensor.contiguous() for name, tensor in states.pop(client).items()}
                payload = torch.frombuffer(bytearray(encode_state(state)), dtype=torch.uint8)
                for part in (torch.tensor([payload.numel()]), payload):
                    sending.append((dist.isend(part, target), part))
                if sum(part.numel() for _, part in sending) > IN_FLIGHT:
                    _wait_for(sending)
            elif self.rank == target:
                size = torch.zeros(1, dtype=torch.int64)
                dist.recv(size, source)
                payload = torch.empty(int(size), dtype=torch.uint8)
                dist.recv(payload, source)
                states[client] = decode_state(payload.numpy().tobytes())
        _wait_for(sending)


def _wait_for(sending: list[tuple[dist.Work | None, Tensor]]) -> None:
    """Every rank goes through the moves in the same order, so the first that is not done can always be."""
    for work, _ in sending:
        assert work is not None
        work.wait()
    sending.clear()
