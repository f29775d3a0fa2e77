"""Weighted means with the same bits for any number of ranks.

Floating-point addition is not associative, so a float mean changes with the number of ranks. Here every weighted value
is rounded once to a fixed-point integer (`RESOLUTION` = 2⁻⁴⁴ ≈ 5.7e-14) and integers are added. The total is the same
for any number of ranks and any assignment of clients, by construction.

The weights of a round add up to one. A mean over k clients is therefore off by at most k · 2⁻⁴⁵, divided by the
fraction of the weight that takes part in an entry. For ten equal clients this is 3e-13, far below the rounding of
float32. Values up to `LIMIT` (2¹⁸ = 262 144) cannot overflow 63 bits. A client with a value beyond that, or with a
non-finite value, has diverged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pfl_lightning.foundation.transfer import send

SCALE = 2.0**44
RESOLUTION = 1 / SCALE
LIMIT = 2.0**18
CHUNK = 1 << 22
"""Entries converted to float64 at a time, which bounds the temporary memory for models of any size."""
CPU_CHUNK = 1 << 18
"""The same on CPUs, where temporaries that fit into the cache are several times faster."""


class ExactMean:
    """A weighted mean of named tensors, added up in integers.

    Args:
        like: tensors with the names, shapes and device of the values.

    Attributes:
        sums: int64: one total weight per name, then the weighted sums of all entries. Ready for an all-reduce.
        entry_weights: int64, the weight of each entry, or None while every client sends every entry.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        names = sorted(like)
        self.sizes = {name: like[name].numel() for name in names}
        device = like[names[0]].device
        self.sums = torch.zeros(len(names) + sum(self.sizes.values()), dtype=torch.int64, device=device)
        self.totals = dict(zip(names, self.sums[: len(names)], strict=True))
        self.entries = self._split(self.sums[len(names) :])
        self.entry_weights: Tensor | None = None

    def add(self, values: Mapping[str, Tensor], weight: float, sends: Mapping[str, Tensor]) -> Tensor:
        """Add the values of one client. Returns a bool tensor: False if the client has diverged, and all is lost.

        Args:
            values: the tensors, by name.
            weight: the client's fraction of the total weight of the round.
            sends: per name a bool tensor of the entries that count. A name without one counts whole.
        """
        return self.add_all([values], [weight], [sends])[0]

    def add_all(
        self, values: Sequence[Mapping[str, Tensor]], weights: Sequence[float], sends: Sequence[Mapping[str, Tensor]]
    ) -> Tensor:
        """Add the values of several clients at once. Returns a bool tensor with the answer of `add` for each."""
        if any(sends):
            self.weigh_each_entry()
        usable: list[Tensor] = []
        for name in self.entries:
            rows = [each[name].detach().reshape(-1) for each in values]
            usable += self._add_rows(name, rows, _sent_rows([each.get(name) for each in sends], rows), weights)
        return torch.stack(usable).all(0) if usable else torch.ones(len(weights), dtype=torch.bool)

    def _add_rows(
        self, name: str, rows: Sequence[Tensor], sent: Sequence[Tensor] | None, weights: Sequence[float]
    ) -> list[Tensor]:
        """Add one tensor of each client in pieces. Returns for each piece whose part of it fits."""
        sums, units = self.entries[name], [round(weight * SCALE) for weight in weights]
        scale = _column([weight * SCALE for weight in weights], torch.float64, sums.device)
        unit, usable = _column(units, torch.int64, sums.device), list[Tensor]()
        entry_weights = None if self.entry_weights is None else self._split(self.entry_weights)[name]
        self.totals[name] += sum(units)
        if entry_weights is not None and sent is None:
            entry_weights += sum(units)
        size = max(1, (CPU_CHUNK if sums.device.type == "cpu" else CHUNK) // len(rows))
        for at in (slice(start, start + size) for start in range(0, len(sums), size)):
            part = _stacked(rows, at)
            if sent is not None and entry_weights is not None:
                chosen = _stacked(sent, at)
                part = part.where(chosen, 0.0)
                entry_weights[at] += _added_up(chosen.long() * unit)
            usable.append(fits(part))
            sums[at] += _added_up((part.double() * scale).round_().long())
        return usable

    def weigh_each_entry(self) -> None:
        """Keep a weight for each entry from now on: some client sends only a part of the model."""
        if self.entry_weights is None:
            self.entry_weights = torch.cat([self.totals[name].expand(size) for name, size in self.sizes.items()])

    def result(self, current: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The means. An entry that nobody sent keeps its value in `current`."""
        weights = None if self.entry_weights is None else self._split(self.entry_weights)
        means = {}
        for name, sums in self.entries.items():
            old = current[name]
            divisor = (self.totals[name] if weights is None else weights[name]).double()
            mean = (sums.double() / divisor).to(old.dtype)
            means[name] = mean.where(divisor > 0, old.reshape(-1)).view_as(old)
        return means

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.sizes, torch.split(flat, list(self.sizes.values())), strict=True))


def fits(rows: Tensor) -> Tensor:
    """Whether all entries of a row are finite and within ±`LIMIT`, as bool tensors: reading them may wait for a GPU."""
    return rows.abs().amax(1) <= LIMIT  # the comparison is False for NaN


def is_finite(value: Tensor) -> Tensor:
    """Whether all entries are finite, as a bool tensor. The two extremes tell, faster than a look at every entry."""
    if not value.numel():
        return torch.ones((), dtype=torch.bool, device=value.device)
    low, high = value.aminmax()
    return low.isfinite() & high.isfinite()


def _stacked(rows: Sequence[Tensor], at: slice) -> Tensor:
    """A part of the rows as a matrix. A single row is not copied."""
    return rows[0][at][None] if len(rows) == 1 else torch.stack([row[at] for row in rows])


def _sent_rows(sends: Sequence[Tensor | None], rows: Sequence[Tensor]) -> list[Tensor] | None:
    """The entries that each client sends, or None if all send everything."""
    if all(sent is None for sent in sends):
        return None
    pairs = zip(sends, rows, strict=True)
    return [torch.ones_like(row, dtype=torch.bool) if sent is None else sent.reshape(-1) for sent, row in pairs]


def _column(numbers: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor | float:
    """One factor per row of a matrix."""
    return numbers[0] if len(numbers) == 1 else send(torch.tensor(numbers, dtype=dtype)[:, None], device)


def _added_up(rows: Tensor) -> Tensor:
    """The sum of the rows. A single row is not copied."""
    return rows[0] if len(rows) == 1 else rows.sum(0)
