"""Facts about all samples, gathered while their inputs are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.data.own.moments import Moments
from pfl_lightning.data.own.prepared_file import text_tensor
from pfl_lightning.data.own.source import Block, Source, natural_order
from pfl_lightning.data.partitions.partition import Ints
from pfl_lightning.foundation.errors import ConfigError


class Facts:
    """Targets, owners, moments and the size of the vocabulary of the blocks so far.

    Attributes:
        count: number of samples.
        targets: targets of each block.
        vocabulary: largest token plus 1. 0 if the inputs are not tokens.
    """

    def __init__(self) -> None:
        self.count = 0
        self.targets: list[NDArray[np.generic]] = []
        self.vocabulary = 0
        self._moments = Moments()
        self._owner_numbers: dict[str, int] = {}
        self._owners: list[Ints] = []

    def add(self, block: Block, is_test: NDArray[np.bool_], source: Source) -> None:
        """Check a block and count it. Moments are those of the training samples."""
        self._check(block, source)
        self._moments.add(block.x[~is_test])
        if block.x.dtype == np.int64:
            self.vocabulary = max(self.vocabulary, int(block.x.max()) + 1)
        self.targets.append(block.y)
        self._add_owners(block.owners)
        self.count += len(block.x)

    def moment_tensors(self) -> dict[str, NDArray[np.generic]]:
        """Mean and deviation of each channel or column. Empty for tokens."""
        mean, std = (np.empty(0), np.empty(0)) if self.vocabulary else self._moments.result()
        return {"mean": mean, "std": std}

    def owner_tensors(self, order: Ints) -> dict[str, NDArray[np.generic]]:
        """Owners of the samples in `order`, numbered by name, and their names."""
        if not self._owners:
            return {"owner_names": text_tensor(())}
        names = natural_order(list(self._owner_numbers))
        renumbered = np.empty(len(names), dtype=np.int64)
        renumbered[[self._owner_numbers[name] for name in names]] = np.arange(len(names))
        return {"owners": renumbered[np.concatenate(self._owners)][order], "owner_names": text_tensor(tuple(names))}

    def _add_owners(self, names: Sequence[str] | None) -> None:
        if names is not None:
            numbers = [self._owner_numbers.setdefault(name, len(self._owner_numbers)) for name in names]
            self._owners.append(np.array(numbers, dtype=np.int64))

    def _check(self, block: Block, source: Source) -> None:
        """Refuse inputs that no net can use, and name their place."""
        rows: NDArray[Any] = block.x.reshape(len(block.x), -1)
        wrong: NDArray[Any] = np.zeros(len(rows), dtype=bool)
        reason = ""
        if rows.dtype == np.float32:
            wrong, reason = np.logical_not(np.isfinite(rows).all(axis=1)), "an input is NaN or infinite"
        elif rows.dtype == np.int64:
            wrong, reason = rows.min(axis=1) < 0, "a token is negative"
        if wrong.any():
            raise ConfigError(f"data: {source.place(self.count + int(wrong.argmax()))}: {reason}")
