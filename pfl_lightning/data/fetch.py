"""Fetching a data set once per machine, by the first route that works, and keeping it in our own file format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock
from rich.console import Console

from pfl_lightning.data.federated import Samples
from pfl_lightning.data.file_format import RouteError, content_sha256, read_samples, write_samples
from pfl_lightning.foundation.errors import ConfigError


class Route(NamedTuple):
    """One way to get a data set."""

    name: str
    """Name in messages."""
    load: Callable[[Path], Samples]
    """Returns the samples. Its argument is an empty directory for temporary files. Any exception means that the route
    does not work on this machine."""
    online: bool
    """True if the route uses the network."""


class Recipe(NamedTuple):
    """The routes to a data set and the facts to verify it by."""

    name: str
    routes: list[Route]
    by_hand: str
    """Files that a person can place in the root directory instead, for messages."""
    shape: tuple[int, int, int, int]
    """Shape of all images together. # (N, H, W, C)"""
    num_train: int
    num_classes: int
    sha256: str = ""
    """Checksum of the content. Empty if it is not known, and then each route checks its own files."""

    def check(self, samples: Samples) -> None:
        """Raise a `RouteError` unless sizes, types and labels are those of this data set."""
        x, y = samples.x, samples.y
        if x.dtype != torch.uint8 or tuple(x.shape) != self.shape or samples.num_train != self.num_train:
            raise RouteError(f"wrong content: {x.dtype} images {tuple(x.shape)} instead of torch.uint8 {self.shape}")
        if y.dtype != torch.int64 or y.shape != self.shape[:1] or y.min() < 0 or y.max() >= self.num_classes:
            raise RouteError(f"wrong content: labels must be {self.shape[0]} numbers from 0 to {self.num_classes - 1}")


def obtain(recipe: Recipe, root: Path, download: bool) -> Samples:
    """Return the samples of our file `<root>/<name>.safetensors`, which is written first if it is missing or damaged.

    Processes that ask at the same time wait for the first one. If the root cannot be written to, the original files in
    it are read and no file is kept.

    Args:
        recipe: the data set.
        root: directory of the data sets.
        download: True if routes that use the network may be tried.
    """
    path, tried = root / f"{recipe.name}.safetensors", list[str]()
    if (samples := _own_file(path, recipe, tried)) is not None:
        return samples
    if root.is_dir() and not os.access(root, os.W_OK):
        with tempfile.TemporaryDirectory() as scratch:
            samples = _try_routes(recipe, False, Path(scratch), tried)
    else:
        samples = _fetch_once(recipe, root, path, download, tried)
    if samples is None:
        raise ConfigError(
            f"data: {recipe.name} is not in {root} and could not be fetched. Tried: {'; '.join(tried)}. "
            f"To place it by hand, put into {root} (data.root or PFL_DATA): {recipe.by_hand}"
        )
    return samples


def _fetch_once(recipe: Recipe, root: Path, path: Path, download: bool, tried: list[str]) -> Samples | None:
    """Fetch under a lock. If no route works, nothing is left behind."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f".{recipe.name}.lock"):
            tried.clear()
            if (samples := _own_file(path, recipe, tried)) is not None:
                return samples
            with tempfile.TemporaryDirectory(dir=root, prefix=f".{recipe.name}-") as scratch:
                samples = _try_routes(recipe, download, Path(scratch), tried)
                if samples is not None:
                    write_samples(samples, path, Path(scratch))
        if samples is None:
            _remove_empty(missing)
        return samples
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"data.root: cannot write to {root} ({why}); set data.root or PFL_DATA to another directory"
        ) from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file and remove it at the end.

    Two processes might then hold different locks of the same name. At worst both fetch, since each checks for the
    finished file first and writes it in one step.
    """
    with FileLock(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # another process has put a file there
        for folder in folders:
            folder.rmdir()


def _own_file(path: Path, recipe: Recipe, tried: list[str]) -> Samples | None:
    if not path.exists():
        tried.append(f"{path.name} (not there)")
        return None
    try:
        samples = read_samples(path, recipe.sha256)
        recipe.check(samples)
    except RouteError as error:
        tried.append(f"{path.name} ({error})")
        return None
    return samples


def _try_routes(recipe: Recipe, download: bool, scratch: Path, tried: list[str]) -> Samples | None:
    console = Console(stderr=True, highlight=False, markup=False)
    for number, route in enumerate(recipe.routes):
        if route.online and not download:
            tried.append(f"{route.name} (not tried: data.download is false)")
            continue
        if route.online:
            console.print(f"{recipe.name}: trying {route.name} ...", soft_wrap=True)
        place = scratch / str(number)
        place.mkdir()
        try:
            samples = route.load(place)
            recipe.check(samples)
            if recipe.sha256 and content_sha256(samples) != recipe.sha256:
                raise RouteError("wrong content: the checksum differs")
        except Exception as error:
            # whatever fails in a route (network, archive, decoder), the next one may still work
            tried.append(f"{route.name} ({_one_line(error)})")
        else:
            console.print(f"{recipe.name}: {len(samples.y)} images from {route.name}, verified", soft_wrap=True)
            return samples
    return None


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
