"""The uploads of a round: averaged as they arrive, compared and combined without gathering models.

An algorithm's `aggregate` sees all clients of the round through `Uploads`. It needs no knowledge of ranks: every method
gives the same answer on every rank, with the same bits for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.comm.exact_mean import LIMIT, ExactMean, fits, is_finite
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.comm.upload import Upload
from pfl_lightning.foundation.errors import AlgorithmError, DivergedError

UNUSABLE = f"its upload has a value that is NaN, infinite or beyond ±{LIMIT:,.0f}"


class Uploads:
    """The uploads of all clients of a round.

    The loop adds each upload as soon as its client has been trained. Its `values` go straight into a running sum, so
    memory does not grow with the cohort. Its `extra` is held by the rank that trained the client.

    Args:
        comm: the collectives.
        owner: every client of the round, and the rank that trains it.

    Attributes:
        cohort: the clients of the round, ascending. Rows of tables and matrices follow this order.
        local: the uploads this rank holds, by client. Other ranks hold the rest, so combine them only by the methods
            of this class.
    """

    def __init__(self, comm: Comm, owner: Mapping[int, int]) -> None:
        self.comm, self.owner = comm, owner
        self.cohort = sorted(owner)
        self.local: dict[int, Upload] = {}
        self.diverged: dict[int, str] = {}
        self._unread: dict[int, Tensor] = {}
        """Clients whose upload is on a GPU, and whether it can be averaged. Read once, when all are trained."""
        self._total: ExactMean | None = None
        self._averaged = self._partial = False

    def add(self, uploads: Sequence[Upload], diverged: Sequence[str | None] | None = None) -> None:
        """Take the uploads of clients that this rank has trained.

        Args:
            uploads: the uploads. Those of clients that were trained together are averaged together.
            diverged: per upload a sign that the client has diverged, if its visit showed one.
        """
        for upload in uploads:
            self._check_sizes(upload)
        averaged, fits = [upload for upload in uploads if upload.values], dict[int, Tensor]()
        if self._total and averaged:
            added = self._total.add_all(*zip(*((u.values, u.weight, u.sends) for u in averaged), strict=True))
            fits = dict(zip((upload.client for upload in averaged), added, strict=True))
        for upload, sign in zip(uploads, diverged or [None] * len(uploads), strict=True):
            usable = [is_finite(v) for v in upload.extra.values() if _is_float(v)]
            usable += [fits[upload.client]] if upload.client in fits else []
            if sign:
                self.diverged[upload.client] = sign
            elif usable and all(flag.is_cuda for flag in usable):
                self._unread[upload.client] = torch.stack(usable).all()
            elif not all(map(bool, usable)):
                self.diverged[upload.client] = UNUSABLE
            self.local[upload.client] = Upload(upload.client, {}, upload.weight, upload.sends, upload.extra)

    def _check_sizes(self, upload: Upload) -> None:
        """Refuse values whose names or sizes differ from those of the clients before."""
        if upload.values and self._total is None:
            self._total = ExactMean(upload.values)
        elif upload.values and self._total and self._total.sizes != _sizes(upload.values):
            own, others = _compare(_sizes(upload.values), self._total.sizes)
            raise AlgorithmError(f"upload: client {upload.client} uploads {own}, but other clients {others}")

    def close(self) -> None:
        """Called by the loop when all clients are trained. Raises a `DivergedError` on every rank if one diverged."""
        flags = torch.stack(list(self._unread.values())).tolist() if self._unread else []
        unusable = [client for client, usable in zip(self._unread, flags, strict=True) if not usable]
        self.diverged |= dict.fromkeys(unusable, UNUSABLE)
        partial = self._total is not None and self._total.entry_weights is not None
        self._partial, diverged = self.comm.agree(partial, bool(self.diverged))
        if diverged:
            self._raise_diverged()

    def mean(self, current: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The exact weighted mean of the uploaded values, by name. Call it once in a round.

        Args:
            current: the present value of each name, which stays where nobody sends an entry.
        """
        if self._averaged:
            raise AlgorithmError("aggregate: uploads.mean can be called once in a round; keep its result")
        self._averaged = True
        total = self._total or ExactMean(current)
        if total.sizes != _sizes(current):
            uploaded, asked = _compare(total.sizes, _sizes(current))
            raise AlgorithmError(f"aggregate: the clients uploaded {uploaded}, but uploads.mean was asked for {asked}")
        return self._add_up(total, self._partial, current)

    def _add_up(self, total: ExactMean, partial: bool, current: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if partial:
            total.weigh_each_entry()
            assert total.entry_weights is not None
            self.comm.all_sum(total.entry_weights)
        self.comm.all_sum(total.sums)
        return total.result(current)

    def require_used(self) -> None:
        """Called by the loop after `aggregate`: uploaded values that nobody averaged are a mistake."""
        if self._total is not None and not self._averaged:
            raise AlgorithmError(
                f"aggregate: the clients uploaded {', '.join(sorted(self._total.sizes))}, but aggregate ignored it; "
                "call uploads.mean, or upload nothing"
            )

    def table(self, name: str, like: Tensor) -> Tensor:
        """One row per client of the cohort: its `extra[name]`. For values small enough to be everywhere.

        Args:
            name: a name in `extra`.
            like: a tensor of the shape and type of a row. float64 and integers are exact.
        """
        return self.gather_rows(self._extra(name), like)

    def gather_rows(self, rows: Mapping[int, Tensor], like: Tensor) -> Tensor:
        """Complete a table. This rank has the rows of its own clients."""
        table = torch.zeros(len(self.cohort), *like.shape, dtype=like.dtype, device=like.device)
        for row, client in enumerate(self.cohort):
            if client in rows:
                table[row] = rows[client]
        return self.comm.merge_table(table) if table.dtype == torch.float64 else self.comm.all_sum(table)

    def pairwise(self, rows: str, columns: str, like: Tensor, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """`measure(extra[rows] of i, extra[columns] of j)` for all clients i, j: float64 [k, k] on the CPU.

        Columns travel one at a time and each rank measures its own rows. A rank holds the tensors of its own clients
        and one more. Each number is computed once, so it does not depend on the number of ranks.

        Args:
            rows: a name in `extra`.
            columns: a name in `extra`.
            like: a tensor of the shape and type of a column.
            measure: returns a float64 number for two tensors.
        """
        zeros = torch.zeros(len(self.cohort), dtype=torch.float64, device=like.device)
        table = {client: zeros.clone() for client in self.local}
        mine = self._extra(rows)
        for column, (_, other) in enumerate(self.comm.broadcast_each(self._extra(columns), self.owner, like)):
            for client, own in mine.items():
                table[client][column] = measure(own, other)
        return self.gather_rows(table, zeros).cpu()

    def mean_of(self, clients: Sequence[int], name: str, current: Tensor) -> Tensor:
        """The exact weighted mean of `extra[name]` over some clients, with the weights and entries of their uploads."""
        values, chosen = self._extra(name), [self.local[client] for client in self.local if client in set(clients)]
        parts = [(u.client, values[u.client], u.weight, u.sends.get("vector")) for u in chosen]
        return self._reduced(parts, current)

    def combine(self, values: Mapping[int, Tensor], current: Tensor, weight: float | None = None) -> Tensor:
        """The exact mean of one tensor per client.

        Args:
            values: the tensors of this rank's clients.
            current: the present value, for shape and type.
            weight: the weight of each. Default: the weights of the uploads.
        """
        weights = {client: self.local[client].weight if weight is None else weight for client in values}
        return self._reduced([(client, value, weights[client], None) for client, value in values.items()], current)

    def mix(self, name: str, weights: Tensor, like: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield for each client i the exact mean of `extra[name]` of all clients j with weights[i, j].

        One mixture exists at a time. Each rank adds the part of its own clients, and the parts are reduced to the rank
        of client i, so no rank holds the models of others. A rank gets the mixtures of its own clients only.

        Args:
            name: a name in `extra`.
            weights: float64 [k, k] in the order of the cohort, the same on every rank. A row adds up to at most one. A
                client whose row is zero gets nothing.
            like: a tensor of the shape and type of a value.
        """
        values = self._extra(name)
        self.diverged |= {client: UNUSABLE for client, value in values.items() if not fits(value.reshape(1, -1))}
        if self.comm.agree(bool(self.diverged))[0]:
            self._raise_diverged()
        for row, client in enumerate(self.cohort):
            if not weights[row].any():
                continue
            total = ExactMean({name: like})
            for column, other in enumerate(self.cohort):
                if other in values and weights[row, column]:
                    total.add({name: values[other]}, float(weights[row, column]), {})
            self.comm.reduce_to(total.sums, self.owner[client])
            if client in values:
                yield client, total.result({name: like})[name]

    def _extra(self, name: str) -> dict[int, Any]:
        """`extra[name]` of the clients of this rank."""
        for client, upload in self.local.items():
            if name not in upload.extra:
                raise AlgorithmError(f"aggregate asks for extra[{name!r}], which the upload of client {client} lacks")
        return {client: upload.extra[name] for client, upload in self.local.items()}

    def _reduced(self, parts: Sequence[tuple[int, Tensor, float, Tensor | None]], current: Tensor) -> Tensor:
        total = ExactMean({"value": current})
        for client, value, weight, sends in parts:
            if not total.add({"value": value}, weight, {} if sends is None else {"value": sends}):
                self.diverged[client] = UNUSABLE
        partial, diverged = self.comm.agree(total.entry_weights is not None, bool(self.diverged))
        if diverged:
            self._raise_diverged()
        return self._add_up(total, partial, {"value": current})["value"]

    def _raise_diverged(self) -> None:
        found = {client: reason for reasons in self.comm.gather(self.diverged) for client, reason in reasons.items()}
        first, *others = sorted(found)
        more = f" (and {len(others)} more)" if others else ""
        raise DivergedError(diverged_text(f"{first}{more}", self.comm.round, found[first]))


def diverged_text(client: int | str, round_: int, reason: str) -> str:
    """The line that names a diverged client."""
    return f"client {client} diverged in round {round_}: {reason}; a smaller learning rate usually helps"


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _sizes(values: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: value.numel() for name, value in values.items()}


def _compare(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[str, str]:
    """The names of tensors in two lists, with their sizes if the names are the same."""
    if one.keys() != other.keys():
        return ", ".join(sorted(one)), ", ".join(sorted(other))
    texts = [[f"{name} with {sizes[name]} entries" for name in sorted(sizes)] for sizes in (one, other)]
    return ", ".join(texts[0]), ", ".join(texts[1])
