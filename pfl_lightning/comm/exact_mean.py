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
        units, usable = [round(weight * SCALE) for weight in weights], list[Tensor]()
        if any(sends):
            self.weigh_each_entry()
        for name, sums in self.entries.items():
            entry_weights = None if self.entry_weights is None else self._split(self.entry_weights)[name]
            self.totals[name] += sum(units)
            rows = [each[name].detach().reshape(-1) for each in values]
            sent = _rows_sent([each.get(name) for each in sends], rows)
            if entry_weights is not None and sent is None:
                entry_weights += sum(units)
            chunk = (CPU_CHUNK if sums.device.type == "cpu" else CHUNK) // len(rows)
            for start in range(0, len(sums), chunk):
                at = slice(start, start + chunk)
                part = _stacked([row[at] for row in rows])
                if sent is not None:
                    chosen = _stacked([row[at] for row in sent])
                    part = part.where(chosen, 0.0)
                    assert entry_weights is not None, "made above"
                    entry_weights[at] += _added_up(chosen.long() * _column(units, torch.int64, sums.device))
                usable.append(_fit(part))
                scaled = part.double() * _column([weight * SCALE for weight in weights], torch.float64, sums.device)
                sums[at] += _added_up(scaled.round_().long())
        return torch.stack(usable).all(0) if usable else torch.ones(len(weights), dtype=torch.bool)

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


def fits(value: Tensor) -> Tensor:
    """Whether all entries are finite and within ±`LIMIT`, as a bool tensor: reading it may have to wait for a GPU."""
    low, high = value.aminmax()
    return torch.maximum(-low, high) <= LIMIT  # the comparison is False for NaN


def is_finite(value: Tensor) -> Tensor:
    """Whether all entries are finite, as a bool tensor. The two extremes tell, faster than a look at every entry."""
    if not value.numel():
        return torch.ones((), dtype=torch.bool, device=value.device)
    low, high = value.aminmax()
    return low.isfinite() & high.isfinite()


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """The rows of a matrix. A single one is not copied."""
    return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))


def _rows_sent(sends: Sequence[Tensor | None], rows: Sequence[Tensor]) -> list[Tensor] | None:
    """The entries that each client sends, or None if all send everything."""
    if all(sent is None for sent in sends):
        return None
    whole = [
        torch.ones_like(row, dtype=torch.bool) if sent is None else sent for sent, row in zip(sends, rows, strict=True)
    ]
    return [sent.reshape(-1) for sent in whole]


def _column(numbers: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor | float:
    """One factor per row of a matrix."""
    return numbers[0] if len(numbers) == 1 else send(torch.tensor(numbers, dtype=dtype)[:, None], device)


def _added_up(rows: Tensor) -> Tensor:
    return rows[0] if len(rows) == 1 else rows.sum(0)


def _fit(rows: Tensor) -> Tensor:
    """`fits` for each row."""
    if len(rows) == 1:
        return fits(rows)[None]
    low, high = rows.aminmax(dim=1)
    return torch.maximum(-low, high) <= LIMIT
