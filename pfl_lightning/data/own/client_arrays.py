"""Arrays in .npz files: one file for each client, or one file with an array that names the clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from pfl_lightning.data.own.arrays import as_inputs, as_targets
from pfl_lightning.data.own.npz_file import NpzFile
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.source import Block, Source, Survey, existing, file_identity
from pfl_lightning.foundation.errors import ConfigError


class ClientArrays(OwnData):
    """Arrays in .npz files.

    A folder holds one file for each client with the arrays x and y, or x_train, y_train, x_test and y_test. A single
    file holds x and y of all clients, client with the client of each row, and optionally split with the words train and
    test. Bytes [n, H, W] or [n, H, W, C] are images, floats are numbers, whole numbers are tokens. Labels are whole
    numbers or text for classes, and floats for numbers to predict.

    Args:
        source: the folder or the file.
        **kwargs: as for all data of your own.
    """

    def __init__(self, source: str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.source = source

    @override
    def origin(self) -> str:
        return Path(self.source).stem

    @override
    def open_source(self) -> Source:
        path = existing(self.source)
        return FolderOfArrays(path) if path.is_dir() else FileOfArrays(path)


class Pair(NamedTuple):
    """Inputs and labels that belong together."""

    file: NpzFile
    x: str
    y: str
    is_test: bool

    def check(self) -> int:
        """The number of samples. Raises a `ConfigError` if the two arrays differ in length."""
        for name in (self.x, self.y):
            if name not in self.file.headers:
                raise ConfigError(
                    f"source: {self.file.path} has no array {name}; it has {', '.join(self.file.headers)}"
                )
        count, labels = self.file.length(self.x), self.file.length(self.y)
        if count != labels:
            raise ConfigError(f"data: {self.file.path}: {self.x} has {count} rows, {self.y} has {labels}")
        return count

    def blocks(self) -> Iterator[Block]:
        """The samples without their owners."""
        y, start = as_targets(self.file.read(self.y), self.file.path), 0
        for piece in self.file.blocks(self.x):
            if len(piece):
                yield Block(as_inputs(piece, self.file.path), y[start : start + len(piece)])
                start += len(piece)


class FolderOfArrays(Source):
    """Reads one file for each client.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(path for path in folder.glob("*.npz") if not path.name.startswith("."))
        if not self.paths:
            raise ConfigError(f"source: {folder} holds no .npz files; there must be one for each client")

    @override
    def identity(self) -> Iterator[str]:
        for path in self.paths:
            yield file_identity(path)

    @override
    def survey(self) -> Survey:
        self._pairs = [pair for path in self.paths for pair in _pairs(NpzFile(path))]
        self._counts = [pair.check() for pair in self._pairs]
        counts = dict.fromkeys(self.paths, 0)
        for pair, count in zip(self._pairs, self._counts, strict=True):
            counts[pair.file.path] += count
        if empty := [path for path, count in counts.items() if not count]:
            raise ConfigError(f"source: {empty[0]} has no samples; leave such clients out")
        split = {pair.x != "x" for pair in self._pairs}
        if len(split) > 1:
            odd = next(pair.file.path for pair in self._pairs if pair.x == "x")
            raise ConfigError(f"source: {odd} has the array x, other clients have x_train and x_test")
        is_test = np.repeat([pair.is_test for pair in self._pairs], self._counts) if split == {True} else None
        if is_test is not None and not is_test.any():
            raise ConfigError(f"source: no file in {self.paths[0].parent} has an array x_test with rows")
        return Survey(sum(self._counts), is_test)

    @override
    def blocks(self) -> Iterator[Block]:
        first: Block | None = None
        for pair in self._pairs:
            for block in pair.blocks():
                first = first or block
                _check_like(block, first, pair.file.path)
                yield block._replace(owners=[pair.file.path.stem] * len(block.x))

    @override
    def place(self, row: int) -> str:
        ends = np.cumsum(self._counts)
        at = int(np.searchsorted(ends, row, side="right"))
        pair = self._pairs[at]
        return f"{pair.file.path} row {row - int(ends[at]) + self._counts[at]} of {pair.x}"


class FileOfArrays(Source):
    """Reads one file with the samples of all clients.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @override
    def identity(self) -> Iterator[str]:
        yield file_identity(self.path)

    @override
    def survey(self) -> Survey:
        file = NpzFile(self.path)
        self._pair = Pair(file, "x", "y", False)
        count = self._pair.check()
        self._owners = self._column(file, "client", count)
        words = self._column(file, "split", count)
        if words is None:
            return Survey(count)
        wrong = [row for row, word in enumerate(words) if word not in ("train", "test")]
        if wrong:
            raise ConfigError(f"data: {self.place(wrong[0])}: split is {words[wrong[0]]!r}; use train or test")
        if len(set(words)) < 2:
            raise ConfigError(f"data: {self.path}: split names {words[0]} samples only")
        return Survey(count, np.array(words) == "test")

    @override
    def blocks(self) -> Iterator[Block]:
        start = 0
        for block in self._pair.blocks():
            stop = start + len(block.x)
            yield block._replace(owners=None if self._owners is None else self._owners[start:stop])
            start = stop

    @override
    def place(self, row: int) -> str:
        return f"{self.path} row {row} of x"

    def _column(self, file: NpzFile, name: str, count: int) -> list[str] | None:
        """One text for each sample, or None if there is no such array."""
        if name not in file.headers:
            return None
        shape = file.headers[name].shape
        if shape != (count,):
            raise ConfigError(f"data: {self.path}: {name} has the shape {shape}, x has {count} rows")
        return [str(value) for value in file.read(name).tolist()]


def _pairs(file: NpzFile) -> list[Pair]:
    if "x_train" in file.headers:
        test = [Pair(file, "x_test", "y_test", True)] if "x_test" in file.headers else []
        return [Pair(file, "x_train", "y_train", False), *test]
    return [Pair(file, "x", "y", False)]


def _check_like(block: Block, first: Block, place: object) -> None:
    if block.x.shape[1:] != first.x.shape[1:] or block.x.dtype != first.x.dtype:
        raise ConfigError(
            f"data: {place}: inputs are {block.x.dtype} {list(block.x.shape[1:])}, those of the first file are "
            f"{first.x.dtype} {list(first.x.shape[1:])}"
        )
