"""The samples of a client outside the run, in the form of the run's data."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from pfl_lightning.data.federated import FederatedData, Samples
from pfl_lightning.data.own import ImageTable, Table
from pfl_lightning.data.own.client_arrays import FolderOfArrays
from pfl_lightning.data.own.client_folders import FolderSource
from pfl_lightning.data.own.image_files import ImageShape
from pfl_lightning.data.own.prepare import prepare
from pfl_lightning.data.own.prepared_file import Prepared
from pfl_lightning.data.own.source import Source
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.monitor.client_tables import class_names

NEW_CLIENT = "new_client"


def read_new_client(data: FederatedData, path: Path, test_share: float, seed: int) -> FederatedData:
    """The data of a run with one more client, which is the last one and the only one with samples.

    Normalisation, classes and random changes to training images are those of the run.

    Args:
        data: of the run.
        path: an .npz file with x and y (or x_train, y_train, x_test, y_test), a folder of images in folders named
            after their class, or a table like that of the run.
        test_share: fraction of the samples to test on, if the files name no test samples.
        seed: of the choice of test samples.
    """
    if not path.exists():
        raise ConfigError(f"data: {path} does not exist")
    with TemporaryDirectory() as folder:
        try:
            prepared = _prepare(_open_source(data, path, Path(folder) / "source"), Path(folder), data)
        except ConfigError as error:
            link = str(_link(path, Path(folder) / "source"))
            text = str(error).removeprefix("data: ").removeprefix("source: ").replace(link, str(path))
            raise ConfigError(f"data: {text}") from error
        samples = _like_the_run(prepared, data, path)
    return _with_one_more(data, samples, _parts(samples, data.num_clients, test_share, seed), seed)


def _open_source(data: FederatedData, path: Path, folder: Path) -> Source:
    """The reader of the files. Readers of clients expect a folder of clients, so they get one with a link."""
    if path.is_dir() or path.suffix == ".npz":
        folder.mkdir()
        _link(path, folder).symlink_to(path.resolve())
        if path.is_file():
            return FolderOfArrays(folder)
        if not data.samples.are_images:
            raise ConfigError(f"{path} is a folder, but the run's inputs are not images; use an .npz file or a table")
        channels, height, width = data.spec.shape
        return FolderSource(folder, ImageShape.of((height, width), 1 if channels == 1 else 3))
    if isinstance(data, Table | ImageTable):
        table = copy.copy(data)
        table.source, table.client = path, None
        return table.open_source()
    raise ConfigError(f"{path} is not a kind of file that can be read here; use an .npz file or a folder of images")


def _link(path: Path, folder: Path) -> Path:
    """The place of the client's files in a folder of clients."""
    return folder / f"{NEW_CLIENT}{path.suffix if path.is_file() else ''}"


def _prepare(source: Source, folder: Path, data: FederatedData) -> Prepared:
    """Read the samples. Class numbers are checked against the run's, class names are looked up later."""
    classes = data.spec.num_classes if data.kind == "classes" else None
    try:
        return prepare(source, folder, NEW_CLIENT, classes, keep=False)
    except ConfigError as error:
        if not str(error).startswith("num_classes"):
            raise
        return prepare(source, folder, NEW_CLIENT, None, keep=False)


def _like_the_run(prepared: Prepared, data: FederatedData, path: Path) -> Samples:
    """The samples with the class numbers of the run. Raises a `ConfigError` if they are of another kind."""
    samples, wanted = prepared.samples, data.samples
    if samples.x.shape[1:] != wanted.x.shape[1:] or samples.x.dtype != wanted.x.dtype:
        made, needed = (f"{str(x.dtype).removeprefix('torch.')} {list(x.shape[1:])}" for x in (samples.x, wanted.x))
        raise ConfigError(f"data: inputs in {path} are {made}, those of the run are {needed}")
    if samples.kind != wanted.kind or (samples.kind == "numbers" and samples.y.shape[1:] != wanted.y.shape[1:]):
        raise ConfigError(
            f"data: targets in {path} are not like those of the run ({data.spec.num_classes} {data.kind})"
        )
    if not prepared.class_names:
        return samples._replace(owners=None)
    known = {name: number for number, name in enumerate(class_names(data))}
    strange = [name for name in prepared.class_names if name not in known]
    if strange:
        raise ConfigError(f"data: class {strange[0]} in {path} is not a class of the run: {', '.join(known)}")
    numbers = torch.tensor([known[name] for name in prepared.class_names])
    return samples._replace(y=numbers[samples.y], owners=None)


def _parts(samples: Samples, clients: int, test_share: float, seed: int) -> Parts:
    """All samples for the last client: those that the files name as test samples, or a random part."""
    count, num_test = len(samples.y), len(samples.y) - samples.num_train
    order = np.arange(count)
    if not samples.num_train:
        order = np.random.default_rng(derive_seed(seed, "new client")).permutation(count)
        num_test = min(round(test_share * count), count - 1)
    sizes = np.zeros((2, clients + 1), dtype=np.int64)
    sizes[:, -1] = count - num_test, num_test
    return Parts(order, sizes[0], sizes[1])


def _with_one_more(data: FederatedData, samples: Samples, parts: Parts, seed: int) -> FederatedData:
    """A copy of the data with these samples instead of its own."""
    methods = {
        "load": lambda self: samples,
        "draw": lambda self, samples, rng: parts,
        "validate_samples": lambda self: None,
        "validate_partition": lambda self: [],
    }
    made = copy.copy(data)
    made.__class__ = type(type(data).__name__, (type(data),), methods)
    made.num_clients, made.client_names, made.held_out_clients = data.num_clients + 1, (), 0.0
    FederatedData.setup(made, seed)
    return made
