"""Reading Python data sets for the prepared file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from typing_extensions import override

from pfl_lightning.data.own.arrays import as_inputs, as_targets
from pfl_lightning.data.own.image_files import ImageShape
from pfl_lightning.data.own.source import Block, Source, Survey, rows_per_block
from pfl_lightning.foundation.errors import ConfigError


class Keys(NamedTuple):
    """Positions or keys of the values of a sample."""

    inputs: int | str
    label: int | str
    client: int | str | None


class DatasetSource(Source):
    """Reads the samples of data sets that can be indexed.

    Args:
        train: the data set, or its training part.
        test: its test part, or None.
        keys: where the values of a sample are.
        shape: the shape that images get.
        name: name of the data set for messages.
    """

    def __init__(self, train: Any, test: Any | None, keys: Keys, shape: ImageShape, name: str) -> None:
        self.parts = [train] if test is None else [train, test]
        self.keys, self.shape, self.name = keys, shape, name

    @override
    def identity(self) -> Iterator[str]:
        yield f"{self.name} {self.keys} {self.shape} {[len(part) for part in self.parts]}"

    @override
    def survey(self) -> Survey:
        sizes = [len(part) for part in self.parts]
        if 0 in sizes:
            raise ConfigError(f"dataset: {self.name} has {sizes} samples; no part may be empty")
        is_test = np.repeat([False, True], sizes) if len(sizes) == 2 else None
        return Survey(sum(sizes), is_test, self.class_names())

    def class_names(self) -> list[str] | None:
        """Names of the classes, if the data set tells them as torchvision's do."""
        names = getattr(self.parts[0], "classes", None)
        usable = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return list(names) if usable and names else None

    @override
    def blocks(self) -> Iterator[Block]:
        rows: list[tuple[NDArray[Any], NDArray[Any], str | None]] = []
        first: NDArray[Any] | None = None
        limit = 1
        for row in range(sum(len(part) for part in self.parts)):
            rows.append(self._sample(row))
            if first is None:
                first = rows[0][0]
                limit = rows_per_block(first.nbytes)
            self._check_like(rows[-1][0], first, row)
            if len(rows) == limit:
                yield self._block(rows)
                rows = []
        if rows:
            yield self._block(rows)

    @override
    def place(self, row: int) -> str:
        size = len(self.parts[0])
        return f"sample {row} of {self.name}" if row < size else f"sample {row - size} of the test part of {self.name}"

    def _sample(self, row: int) -> tuple[NDArray[Any], NDArray[Any], str | None]:
        """Input, label and client of one sample."""
        size = len(self.parts[0])
        try:
            sample = self.parts[0][row] if row < size else self.parts[1][row - size]
        except Exception as error:  # a stranger's code may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"data: {self.place(row)} cannot be read: {reason}") from error
        x, y = self._value(sample, "inputs", row), self._value(sample, "label", row)
        client = None if self.keys.client is None else str(_plain(self._value(sample, "client", row)))
        return self._input(x, row), np.asarray(_plain(y)), client

    def _value(self, sample: Any, key: str, row: int) -> Any:
        at = getattr(self.keys, key)
        try:
            return sample[at]
        except (KeyError, IndexError, TypeError) as error:
            has = f"the keys {', '.join(map(str, sample))}" if isinstance(sample, dict) else _positions(sample)
            raise ConfigError(f"{key}: {self.place(row)} has no value {at!r}; it has {has}") from error

    def _input(self, x: Any, row: int) -> NDArray[Any]:
        """One input. Bytes of images get the axes [H, W, C]."""
        if isinstance(x, Mapping) or (isinstance(x, tuple) and any(getattr(part, "ndim", 0) for part in x)):
            kind = type(x).__name__
            raise ConfigError(f"inputs: {self.place(row)} has a {kind} of inputs; join them into one array")
        try:
            if isinstance(x, Image.Image):
                self.shape = self.shape.like(x)
                return self.shape.convert(x)
            array = np.atleast_1d(np.asarray(_plain(x)))
        except ValueError as error:
            raise ConfigError(f"data: {self.place(row)}: {' '.join(str(error).split())}") from error
        if array.dtype != np.uint8 or array.ndim not in (2, 3):
            return array
        if array.ndim == 3 and (isinstance(x, torch.Tensor) or array.shape[-1] not in (1, 3)):
            array = array.transpose(1, 2, 0)
        if self.shape.size:
            image = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
            return self.shape.like(image).convert(image)
        return array

    def _check_like(self, x: NDArray[Any], first: NDArray[Any], row: int) -> None:
        if x.shape != first.shape:
            raise ConfigError(
                f"data: {self.place(row)} has the shape {list(x.shape)}, the first sample has {list(first.shape)}; "
                "for images set data.size"
            )

    def _block(self, rows: list[tuple[NDArray[Any], NDArray[Any], str | None]]) -> Block:
        x, y, owners = zip(*rows, strict=True)
        try:
            labels = np.stack(y)
        except ValueError as error:
            raise ConfigError(f"data: labels of {self.name} differ in shape") from error
        named = None if self.keys.client is None else [str(owner) for owner in owners]
        return Block(as_inputs(np.stack(x), self.name), as_targets(labels, self.name), named)


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _positions(sample: Any) -> str:
    return f"{len(sample)} values" if hasattr(sample, "__len__") else f"the type {type(sample).__name__}"
