"""Weighted means that are the same for any number of ranks, and what leaves a client to be averaged.

Floating-point addition is not associative, so a float mean changes with the number of ranks. Here every weighted value
is rounded once to a fixed-point integer (`RESOLUTION` = 2⁻⁴⁴ ≈ 5.7e-14) and integers are added: the total is the same
for any number of ranks and any assignment of clients, by construction. The weights of a round add up to one, so a mean
over k clients is off by at most k · 2⁻⁴⁵ divided by the share of the weight that takes part in an entry (3e-13 for ten
equal clients: far below float32's own rounding of a usual weight), and values up to `LIMIT` (2¹⁸ = 262 144) cannot
overflow 63 bits. A value beyond that, or not finite, ends the run with the client and the round named: such a client
has diverged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pfl_lightning.errors import DivergedError

SCALE = 2.0**44
RESOLUTION = 1 / SCALE
LIMIT = 2.0**18
CHUNK = 1 << 22  # entries that are converted at once: bounds the float64 temporaries for models of any size
BLOCK = 1 << 18  # the same on CPUs, where temporaries that fit into the cache are several times faster


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
                weights.add_(unit if share is None else share.reshape(-1), alpha=1 if share is None else unit)
        return True

    @staticmethod
    def _add_value(value: Tensor, share: Tensor | None, weight: float, sums: Tensor) -> bool:
        block = BLOCK if value.device.type == "cpu" else CHUNK
        for start in range(0, value.numel(), block):
            part = value[start : start + block]
            if share is not None:
                part = part.where(share.reshape(-1)[start : start + block], 0.0)
            low, high = part.aminmax()
            if not bool(torch.maximum(-low, high) <= LIMIT):  # NaN is not
                return False
            sums[start : start + block] += (part.double() * (weight * SCALE)).round_().long()
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
