"""Reading tables for the prepared file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from typing_extensions import override

from pfl_lightning.data.own.columns import INDEX_ROWS, Kind, as_numbers, read_index
from pfl_lightning.data.own.image_files import ImageShape, read_images
from pfl_lightning.data.own.source import Block, Source, Survey, file_identity, rows_per_block
from pfl_lightning.data.own.table_file import Column, open_table
from pfl_lightning.foundation.errors import ConfigError


class TableSource(Source):
    """Reads rows of numbers.

    Args:
        path: the file.
        labels: columns of the label.
        client: column of the client, or None.
        features: columns of the inputs. All others if None.
        split: column of the split, or None.
        kind: whether the labels are classes or numbers to predict.
    """

    def __init__(
        self,
        path: Path,
        labels: list[str],
        client: str | None,
        features: Sequence[str] | None,
        split: str | None,
        kind: Kind,
    ) -> None:
        self.table, self.kind = open_table(path), kind
        self.labels = [self.table.require("label", name) for name in labels]
        self.client = None if client is None else self.table.require("client", client)
        self.split = None if split is None else self.table.require("split", split)
        used = {*self.labels, self.client, self.split}
        others = [name for name in self.table.columns if name not in used]
        self.features = [self.table.require("features", name) for name in (others if features is None else features)]
        if both := used & set(self.features):
            raise ConfigError(f"features: {both.pop()} is used as label, client or split too")
        if not self.features:
            raise ConfigError(f"features: {path} has no columns besides label, client and split")

    @override
    def identity(self) -> Iterator[str]:
        yield f"{self.labels} {self.client} {self.features} {self.split} {self.kind}"
        yield file_identity(self.table.path)

    @override
    def survey(self) -> Survey:
        self._index = read_index(self.table, self.labels, self.client, self.split, self.kind)
        return Survey(len(self._index.y), self._index.is_test)

    @override
    def blocks(self) -> Iterator[Block]:
        start = 0
        for x in self.inputs():
            rows = slice(start, start + len(x))
            yield Block(
                x, self._index.y[rows], None if self._index.owners is None else self._index.owners[rows].tolist()
            )
            start += len(x)

    @override
    def place(self, row: int) -> str:
        return self.table.place(row)

    def inputs(self) -> Iterator[Column]:
        """Inputs in blocks: float32 [n, F], or tokens int64 [n, L]."""
        start = 0
        first = next(self.table.blocks(self.features, 1))
        for block in self.table.blocks(self.features, rows_per_block(sum(values.nbytes for values in first.values()))):
            yield self._join(block, start)
            start += len(next(iter(block.values())))

    def _join(self, block: dict[str, Column], start: int) -> Column:
        columns = list(block.items())
        if len(columns) == 1 and columns[0][1].ndim == 2:
            name, lists = columns[0]
            if lists.dtype.kind not in "biuf":
                raise ConfigError(f"features: column {name} holds lists of {lists.dtype}; use lists of numbers")
            return lists.astype(np.int64 if lists.dtype.kind in "iu" else np.float32)
        if listed := [name for name, values in columns if values.ndim > 1]:
            raise ConfigError(f"features: column {listed[0]} holds lists; it must be the only feature")
        return np.stack([as_numbers(name, values, self.place, start) for name, values in columns], axis=1)


class ImageTableSource(TableSource):
    """Reads the images that rows name.

    Args:
        path: the file.
        labels: columns of the label.
        client: column of the client, or None.
        image: column with the path of each image.
        split: column of the split, or None.
        kind: whether the labels are classes or numbers to predict.
        shape: the shape that all images get.
    """

    def __init__(
        self,
        path: Path,
        labels: list[str],
        client: str | None,
        image: str,
        split: str | None,
        kind: Kind,
        shape: ImageShape,
    ) -> None:
        open_table(path).require("path", image)
        super().__init__(path, labels, client, [image], split, kind)
        self.shape = shape
        names = (name for block in self.table.blocks([image], INDEX_ROWS) for name in block[image].tolist())
        self.images = [path.parent / str(name) for name in names]

    @override
    def identity(self) -> Iterator[str]:
        yield from super().identity()
        yield str(self.shape)
        for row, path in enumerate(self.images):
            if not path.is_file():
                raise ConfigError(f"data: {self.place(row)}: there is no file {path}")
            yield file_identity(path, path.parent) + str(path.parent)

    @override
    def inputs(self) -> Iterator[Column]:
        yield from read_images(self.images, self.shape)
