"""What ranks say to each other: exact weighted means, sums of disjoint tables, states that change rank.

**Exact sums.** Floating-point addition is not associative, so a float mean changes with the number of ranks. Here every
weighted value is rounded once to a fixed-point integer (`RESOLUTION` = 2⁻⁴⁴ ≈ 5.7e-14) and integers are added: the
total is the same for any number of ranks and any assignment of clients, by construction. The weights of a round add up
to one, so a mean over k clients is off by at most k · 2⁻⁴⁵ divided by the share of the weight that takes part in an
entry (3e-13 for ten equal clients: far below float32's own rounding of a usual weight), and values up to `LIMIT`
(2¹⁸ = 262 144) cannot overflow 63 bits. A value beyond that, or not finite, ends the run with the client and the round
named: such a client has diverged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from safetensors.torch import load as decode_state
from safetensors.torch import save as encode_state
from torch import Tensor

from pfl_lightning.errors import DivergedError
from pfl_lightning.ranks import Ranks

SCALE = 2.0**44
RESOLUTION = 1 / SCALE
LIMIT = 2.0**18
CHUNK = 1 << 22  # entries that are converted at once: bounds the float64 temporaries for models of any size


@dataclass
class Upload:
    """What leaves a client: named tensors to be averaged, and the weight they count with."""

    client: int
    values: dict[str, Tensor]
    """The tensors, by name; `vector` is the model."""
    weight: float
    """The client's share of the round's total weight, in [0, 1]."""
    share: dict[str, Tensor] = field(default_factory=dict)
    """Per name a bool tensor: the entries that are shared. A name without one is shared as a whole."""


class ExactMean:
    """A weighted mean of uploads that is being added up, in one int64 tensor that can be all-reduced as it is.

    The tensor holds one slot per rank (to tell the others of a diverged client), and per name: the total weight,
    the weighted sum, and, for names in `per_entry`, the weight of each entry.
    """

    def __init__(self, current: Mapping[str, Tensor], per_entry: Iterable[str], rank: int, world: int) -> None:
        self.current = current
        self.rank = rank
        sizes: dict[str, list[int]] = {
            name: [1, tensor.numel(), tensor.numel() if name in set(per_entry) else 0]
            for name, tensor in current.items()
        }
        device = next(iter(current.values())).device
        self.total = torch.zeros(world + sum(map(sum, sizes.values())), dtype=torch.int64, device=device)
        self.diverged, rest = self.total[:world], self.total[world:]
        parts = torch.split(rest, [size for triple in sizes.values() for size in triple])
        self.parts = {name: parts[3 * i : 3 * i + 3] for i, name in enumerate(sizes)}

    def add(self, upload: Upload) -> bool:
        """Add one client's upload; False if it holds a value that no mean can use."""
        for name, (weight, sums, weights) in self.parts.items():
            value, share = upload.values[name].detach().reshape(-1), upload.share.get(name)
            assert share is None or len(weights), f"{name} is shared in part: it must be named in per_entry"
            if not self._add_value(value, share, upload.weight, sums):
                self.diverged[self.rank] = upload.client + 1
                return False
            unit = round(upload.weight * SCALE)
            weight += unit
            if len(weights):
                weights += unit if share is None else unit * share.reshape(-1)
        return True

    @staticmethod
    def _add_value(value: Tensor, share: Tensor | None, weight: float, sums: Tensor) -> bool:
        for start in range(0, value.numel(), CHUNK):
            part = value[start : start + CHUNK].double()
            if share is not None:
                part = part.where(share.reshape(-1)[start : start + CHUNK], 0.0)
            if not bool(part.abs().amax() <= LIMIT):
                return False
            sums[start : start + CHUNK] += (part * (weight * SCALE)).round_().long()
        return True

    def result(self, round_: int) -> dict[str, Tensor]:
        """The means, after the all-reduce. Entries that nobody shares keep their current value."""
        lost = [int(i) - 1 for i in self.diverged.tolist() if i]
        if lost:
            raise DivergedError(
                f"client {', '.join(map(str, lost))} diverged in round {round_}: its upload has a value that is NaN, "
                f"infinite or beyond ±{LIMIT:,.0f}; a smaller learning rate usually helps"
            )
        means = {}
        for name, (weight, sums, weights) in self.parts.items():
            old = self.current[name]
            divisor = (weights if len(weights) else weight).double()
            mean = (sums.double() / divisor).to(old.dtype)
            means[name] = mean.where(divisor > 0, old.reshape(-1)).view_as(old)
        return means


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
        self, states: dict[int, dict[str, Tensor]], moves: Sequence[tuple[int, int, int]]
    ) -> dict[int, dict[str, Tensor]]:
        """Send client states to the ranks that will need them.

        Args:
            states: what this rank holds; states that leave are removed from it.
            moves: `(client, from, to)`, the same list on every rank.

        Returns:
            The states that arrived here.
        """
        with self.together():
            return self._move(states, moves)

    def _move(
        self, states: dict[int, dict[str, Tensor]], moves: Sequence[tuple[int, int, int]]
    ) -> dict[int, dict[str, Tensor]]:
        arrived: dict[int, dict[str, Tensor]] = {}
        sending = []
        for client, source, target in moves:
            if self.rank == source:
                payload = torch.frombuffer(bytearray(encode_state(states.pop(client))), dtype=torch.uint8)
                for part in (torch.tensor([payload.numel()]), payload):
                    sending.append((dist.isend(part, target), part))
            elif self.rank == target:
                size = torch.zeros(1, dtype=torch.int64)
                dist.recv(size, source)
                payload = torch.empty(int(size), dtype=torch.uint8)
                dist.recv(payload, source)
                arrived[client] = decode_state(payload.numpy().tobytes())
        for work, _ in sending:
            assert work is not None
            work.wait()
        return arrived
