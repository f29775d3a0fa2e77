"""Which entries of the flat model are personal: masks by layer, by score, and the overlap of two masks.

Pure functions. A mask is a bool tensor [S] (or [P], parameters only), True = personal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn

from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.model.layout import Layout, Span
from pfl_lightning.model.order_statistic import largest_value, top_candidates

SPARSE = 100
"""A mask with at most one personal entry in this many is handled by its places, which is faster on CPUs."""


def by_module(root: nn.Module, layout: Layout, submodule: nn.Module) -> Tensor:
    """The entries [S] of one submodule of `root` (whose layout it is): its parameters and float buffers."""
    return _by_modules(root, layout, [submodule])


def by_type(root: nn.Module, layout: Layout, types: type[nn.Module] | tuple[type[nn.Module], ...]) -> Tensor:
    """The entries [S] of all submodules of these types. Types, since names such as "bn" miss half of a ResNet."""
    return _by_modules(root, layout, [module for module in root.modules() if isinstance(module, types)])


def by_prefix(layout: Layout, names: Iterable[str], key: str = "layers") -> Tensor:
    """The entries [S] under these module paths: "body.0" means "body.0.weight", never "body.01.weight".

    The layout knows no device: the mask is on the CPU.

    Raises:
        ConfigError: no entry has this name. The message names the setting `key` and lists the modules.
    """
    chosen: list[str] = []
    for name in names:
        found = [span.name for span in layout.spans if span.name == name or span.name.startswith(name + ".")]
        if not found:
            paths = dict.fromkeys(span.name.rpartition(".")[0] or span.name for span in layout.spans)
            raise ConfigError(f"{key}: {name!r} is not in the model; it has {', '.join(paths)}")
        chosen += found
    return layout.where(chosen)


def personal_count(d: int, quantile: float) -> int:
    """How many of `d` distinct scores lie above the quantile: d - 1 - floor(q (d - 1)), with q as it is written.

    0.99998 is not exactly a float. Rounding must not move the floor, so the product is taken of the decimal fraction.
    """
    return max(0, d - 1 - floor_of(quantile, d - 1, "quantile"))


def above_quantile(scores: Tensor, quantile: float) -> Tensor:
    """True where a score is strictly above the order statistic number floor(q (d - 1)), counted from 0.

    Scores equal to the threshold are global. Takes time O(d), for any d.
    """
    if not len(scores):
        return torch.zeros_like(scores, dtype=torch.bool)
    count = personal_count(len(scores), quantile)
    if not scores.is_cuda and count < len(scores) // SPARSE:
        few = top_candidates(scores, count + 1)
        if few is not None:
            return _above_among(scores, *few, count)
    _refuse_nan(scores)
    return _above(scores, largest_value(scores, count + 1))


def top_share(scores: Tensor, share: float, spans: Sequence[Span] | None = None, floor: float = 0.0) -> Tensor:
    """The floor(share n) largest of each tensor's n scores, or of all when `spans` is None.

    Entries below `floor` are never chosen. Their places stay empty. Of equal scores the first in the vector wins.
    """
    _refuse_nan(scores)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    for start, stop in ranges(scores, spans):
        chosen[start:stop] = largest(scores[start:stop], floor_of(share, stop - start, "share"))
    return chosen & (scores >= floor)


def largest(scores: Tensor, count: int) -> Tensor:
    """True at the `count` largest scores (all, if there are fewer). Of equal scores the first in the vector wins."""
    if count <= 0 or count >= len(scores):
        return torch.full_like(scores, count > 0, dtype=torch.bool)
    if scores.is_cuda:  # a sort takes the GPU longer than a selection, but the host does not wait for the ties
        return torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, _places(scores, count), True)
    threshold = largest_value(scores, count)
    chosen = _above(scores, threshold)
    ties = (scores == threshold).nonzero().flatten()
    chosen[ties[: count - int(chosen.count_nonzero())]] = True
    return chosen


def put(own: Tensor, mask: Tensor, values: Tensor) -> None:
    """Set the entries of the mask to those of `values`, bit for bit. The others become anything."""
    if own.is_cuda or count(mask) > len(mask) // SPARSE:
        own.copy_(values)
    else:
        at = indices(mask)
        own[at] = values[at]


def merge(own: Tensor, mask: Tensor, received: Tensor) -> None:
    """Set all entries of `own` but those of the mask to the received ones, bit for bit."""
    if own.is_cuda or count(mask) > len(mask) // SPARSE:
        _setter(own, mask, received)()
        return
    at = indices(mask)
    kept = own[at]
    own.copy_(received)
    own[at] = kept


def restorer(values: Tensor, free: Tensor) -> Callable[[], None]:
    """A function that sets all entries of `values` but the free ones back to their present values, bit for bit.

    For every step of a training.
    """
    return _setter(values, free, values.clone())


def min_max(scores: Tensor, spans: Sequence[Span] | None = None) -> Tensor:
    """Scores scaled to [0, 1] per tensor, or over all when `spans` is None. Where max = min, every score is 0."""
    scaled = torch.zeros_like(scores)
    for start, stop in ranges(scores, spans):
        low, high = scores[start:stop].aminmax()
        # written so that NaN propagates. The selection rejects it later
        scaled[start:stop] = torch.where(high == low, scaled[start:stop], (scores[start:stop] - low) / (high - low))
    return scaled


def overlap(a: Tensor, b: Tensor) -> float:
    """How far `b` covers the critical entries of `a`: 1 - |a - b| / (2 |a|) (FedCAC, FedPURIN). Not symmetric.

    It is negative when `b` marks far more than `a`. With `a` empty: 1 when `b` is empty too, else 0.
    """
    size, different = int(a.count_nonzero()), int((a ^ b).count_nonzero())
    return 1 - different / (2 * size) if size else float(different == 0)


def iou(a: Tensor, b: Tensor) -> float:
    """Intersection over union. 1 for two empty masks, which are equal."""
    union = int((a | b).count_nonzero())
    return int((a & b).count_nonzero()) / union if union else 1.0


def count(mask: Tensor) -> int:
    """The number of True entries."""
    return int(mask.count_nonzero()) if mask.is_cuda else int(np.count_nonzero(mask.numpy()))  # numpy is faster


def indices(mask: Tensor, count: int | None = None) -> Tensor:
    """Where the mask is True, int64, ascending.

    Args:
        mask: bool [n].
        count: the number of True entries, if it is known. With it the host does not wait for a GPU.
    """
    if not mask.is_cuda:  # numpy is several times faster than `nonzero`
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    if count is None:
        return mask.nonzero().flatten()
    return _places(mask.to(torch.uint8), count)


def _places(scores: Tensor, count: int) -> Tensor:
    """Where the largest scores are, on a GPU. Of equal scores the first in the vector wins."""
    return scores.argsort(descending=True, stable=True)[:count]


def pack(mask: Tensor) -> Tensor:
    """One bit per entry, uint8 [ceil(n / 8)]: entry 0 is the lowest bit of byte 0."""
    if not mask.is_cuda:
        return torch.from_numpy(np.packbits(mask.numpy(), bitorder="little"))
    bits = torch.zeros((len(mask) + 7) // 8, dtype=torch.uint8, device=mask.device)
    for bit in range(8):
        column = mask[bit::8].to(torch.uint8)
        bits[: len(column)] |= column << bit
    return bits


def unpack(bits: Tensor, n: int) -> Tensor:
    """The mask [n] that `pack` packed."""
    if not bits.is_cuda:
        return torch.from_numpy(np.unpackbits(bits.numpy(), count=n, bitorder="little")).view(torch.bool)
    mask = torch.empty(n, dtype=torch.bool, device=bits.device)
    for bit in range(8):
        column = mask[bit::8]
        column.copy_(bits[: len(column)] & (1 << bit))
    return mask


def layer_counts(mask: Tensor, layout: Layout) -> Tensor:
    """The number of personal entries in each parameter tensor, of masks [..., S]: int64 [..., layers] on the device."""
    counts = [mask[..., span.start : span.stop].count_nonzero(-1) for span in layout.parameter_spans]
    return torch.stack(counts, -1) if counts else mask.new_empty(*mask.shape[:-1], 0, dtype=torch.int64)


def count_by_layer(mask: Tensor, layout: Layout) -> list[int]:
    """The number of personal entries in each parameter tensor, in the layout's order. `mask` is [S] or [P]."""
    counts: list[int] = layer_counts(mask, layout).tolist()
    return counts


def share_by_layer(mask: Tensor, layout: Layout) -> dict[str, float]:
    """The share of personal entries in each parameter tensor. `mask` is [S] or [P]."""
    counts = zip(layout.parameter_spans, count_by_layer(mask, layout), strict=True)
    return {span.name: count / max(1, span.stop - span.start) for span, count in counts}


def _setter(values: Tensor, kept: Tensor, rest: Tensor) -> Callable[[], None]:
    """A function that sets all entries of `values` but the kept ones to those of `rest`.

    On CPUs `torch.where` decides entry by entry, which for a mask of no pattern is several times slower than integer
    operations on the bits.
    """
    if values.is_cuda:

        def set_values() -> None:
            torch.where(kept, values, rest, out=values)

        return set_values
    integer = {4: torch.int32, 8: torch.int64}[values.element_size()]
    now, then, bits = values.view(integer), rest.view(integer), kept.to(integer).neg_()

    def set_bits() -> None:
        now.bitwise_xor_(then).bitwise_and_(bits).bitwise_xor_(then)

    return set_bits


def _by_modules(root: nn.Module, layout: Layout, modules: Iterable[nn.Module]) -> Tensor:
    """By identity of the tensors: a tied parameter has one name in the layout, but several owners."""
    inside = {id(t) for module in modules for t in (*module.parameters(), *module.buffers())}
    named = {**dict(root.named_parameters()), **dict(root.named_buffers())}
    device = next((t.device for t in named.values()), None)
    return layout.where((span.name for span in layout.spans if id(named[span.name]) in inside), device)


def floor_of(share: float, n: int, key: str) -> int:
    """floor(share · n), with the decimal fraction as it is written. An error names the setting `key`."""
    require(0 <= share <= 1, key, share, "a number from 0 to 1")
    return math.floor(Fraction(repr(float(share))) * n)


def _above(scores: Tensor, value: Tensor) -> Tensor:
    """`scores > value`, which numpy too does faster on CPUs."""
    return scores > value if scores.is_cuda else torch.from_numpy(scores.numpy() > value.numpy())


class NotFiniteError(ValueError):
    """Numbers that a client computes from a finite model and that are not finite. The client has diverged."""


def _above_among(scores: Tensor, at: np.ndarray, values: np.ndarray, count: int) -> Tensor:
    """True at the scores above number `count` from the top, counted from 0.

    Args:
        scores: all scores, on a CPU.
        at: the places of a few of them, in which the largest and all that are NaN lie.
        values: the scores at these places, more than `count`.
        count: how many are chosen, if no two scores are equal.
    """
    _refuse_nan(torch.from_numpy(values))
    place = len(values) - count - 1
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[at[values > np.partition(values, place)[place]]] = True
    return torch.from_numpy(chosen)


def _refuse_nan(scores: Tensor) -> None:
    if len(scores) and bool(scores.max().isnan()):
        raise NotFiniteError("its scores hold NaN, so nothing can be selected")


def ranges(scores: Tensor, spans: Sequence[Span] | None) -> list[tuple[int, int]]:
    """Start and stop of each non-empty tensor, or of the whole vector when `spans` is None."""
    ranges = [(0, len(scores))] if spans is None else [(span.start, span.stop) for span in spans]
    return [(start, stop) for start, stop in ranges if stop > start]
