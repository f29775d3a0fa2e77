"""Checks of a data set and its partition. Each mistake is one line that names the client or the sample."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.data.partitions.partition import Ints, Parts
from pfl_lightning.data.samples import DataSpec, Samples
from pfl_lightning.foundation.errors import ConfigError

ROWS = 8192


def check_parts(name: str, parts: Parts, num_clients: int, num_samples: int) -> None:
    """Check that a partition is whole: its arrays match, and its indices are samples that the data set has."""
    if not isinstance(parts, Parts):
        raise ConfigError(f"data: {name}.draw must return Parts(indices, train_sizes, test_sizes)")
    for field, array in zip(Parts._fields, parts, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 1:
            raise ConfigError(f"data: {field} of {name}'s partition must be a one-dimensional int64 array")
    for field, sizes in (("train_sizes", parts.train_sizes), ("test_sizes", parts.test_sizes)):
        if len(sizes) != num_clients or sizes.min() < 0:
            raise ConfigError(f"data: {field} of {name}'s partition must have {num_clients} entries of 0 or more")
    dealt = int(parts.train_sizes.sum() + parts.test_sizes.sum())
    if dealt != len(parts.indices):
        raise ConfigError(f"data: {name}'s partition has {len(parts.indices)} indices, its sizes add up to {dealt}")
    _check_indices(name, parts, num_samples)


def check_clients(name: str, parts: Parts, client_names: tuple[str, ...]) -> list[str]:
    """Check that every client has training samples, and that some client has test samples.

    Returns:
        Lines about unusual but allowed clients.
    """
    empty = np.flatnonzero(parts.train_sizes == 0)
    if len(empty):
        who = _client(int(empty[0]), client_names)
        raise ConfigError(f"data: {who} of {name} has no training sample; leave such clients out")
    if not parts.test_sizes.any():
        raise ConfigError(f"data: no client of {name} has a test sample, so nothing could be measured")
    notes = []
    for clients, fact in (
        (np.flatnonzero(parts.test_sizes == 0), "no test sample and will not be tested"),
        (np.flatnonzero(parts.train_sizes == 1), "a single training sample; BatchNorm cannot train on it"),
    ):
        if len(clients):
            first = _client(int(clients[0]), client_names)
            notes.append(f"data: {len(clients)} of {len(parts.train_sizes)} clients, {first} first, have {fact}")
    return notes


def check_samples(name: str, samples: Samples, spec: DataSpec | None) -> None:
    """Check the types and lengths, the targets, and that no input or target is NaN or infinite."""
    if not isinstance(spec, DataSpec):
        raise ConfigError(f"data: {name} has no spec; set spec = DataSpec(shape, num_classes)")
    if spec.num_classes < 1:
        raise ConfigError(f"data: the spec of {name} has num_classes {spec.num_classes}; use 1 or more")
    if not isinstance(samples, Samples) or not all(isinstance(tensor, Tensor) for tensor in samples[:2]):
        raise ConfigError(f"data: {name}.load must return Samples(x, y, num_train) with two tensors")
    if not len(samples.y):
        raise ConfigError(f"data: {name} has no samples")
    if len(samples.x) != len(samples.y):
        raise ConfigError(
            f"data: {name} has {len(samples.x)} inputs and {len(samples.y)} targets; the numbers must be equal"
        )
    _check_targets(name, samples, spec.num_classes)
    for word, tensor in (("inputs", samples.x), ("targets", samples.y)):
        if (bad := first_not_finite(tensor)) is not None:
            raise ConfigError(f"data: {name} has NaN or infinite {word} at {_place(bad, samples)}")


def check_inputs(name: str, x: Tensor, spec: DataSpec) -> None:
    """Check inputs that reach the net as they are stored."""
    if x.dtype not in (torch.float32, torch.int64):
        raise ConfigError(
            f"data: {name} has inputs {_type(x)}; use float32 for numbers, int64 for tokens, and a subclass of "
            "ImageData for bytes of images"
        )
    if tuple(x.shape[1:]) != tuple(spec.shape):
        raise ConfigError(f"data: {name} has inputs {_type(x)}, but its spec says {tuple(spec.shape)} for one sample")


def check_images(name: str, x: Tensor, spec: DataSpec) -> None:
    """Check the raw bytes of images."""
    channels, height, width = spec.shape
    if x.dtype != torch.uint8 or tuple(x.shape[1:]) != (height, width, channels):
        raise ConfigError(
            f"data: {name} has inputs {_type(x)}; its images must be uint8 [N, {height}, {width}, {channels}]"
        )


def first_not_finite(tensor: Tensor) -> int | None:
    """The first row with NaN or infinity, or None. Works in pieces, since a mapped file may not fit into memory."""
    if not tensor.is_floating_point():
        return None
    for start in range(0, len(tensor), ROWS):
        # NumPy, because torch would start threads that forked ranks cannot use
        rows = tensor[start : start + ROWS].numpy()
        if not np.isfinite(rows).all():
            return start + int(np.isfinite(rows).reshape(len(rows), -1).all(axis=1).argmin())
    return None


def _check_targets(name: str, samples: Samples, outputs: int) -> None:
    y = samples.y
    if samples.kind == "numbers":
        if y.dtype != torch.float32 or tuple(y.shape[1:]) != (outputs,):
            raise ConfigError(f"data: {name} has targets {_type(y)}; numbers to predict must be float32 [N, {outputs}]")
        return
    if y.dtype != torch.int64 or y.ndim != 1:
        raise ConfigError(
            f"data: {name} has targets {_type(y)}; classes must be int64 [N], numbers to predict float32 [N, K]"
        )
    labels = y.numpy()
    if labels.min() < 0 or labels.max() >= outputs:
        bad = int(((labels < 0) | (labels >= outputs)).argmax())
        raise ConfigError(
            f"data: {name} has label {labels[bad]} at {_place(bad, samples)}; labels must be whole numbers from 0 to "
            f"{outputs - 1}"
        )


def _check_indices(name: str, parts: Parts, num_samples: int) -> None:
    indices = parts.indices
    if len(indices) and (indices.min() < 0 or indices.max() >= num_samples):
        wrong = int(np.flatnonzero((indices < 0) | (indices >= num_samples))[0])
        raise ConfigError(
            f"data: client {_client_at(wrong, parts)} has index {indices[wrong]}; {name} has the samples 0 to "
            f"{num_samples - 1}"
        )
    if len(indices) and np.bincount(indices).max() > 1:  # otherwise nothing can be shared
        clients, is_test = _rows(parts)
        keys = clients * num_samples + indices
        shared = np.intersect1d(keys[~is_test], keys[is_test])
        if len(shared):
            client, sample = divmod(int(shared[0]), num_samples)
            raise ConfigError(f"data: client {client} both trains and is tested on sample {sample} of {name}")


def _client(client: int, names: tuple[str, ...]) -> str:
    return f"client {client} ({names[client]})" if names else f"client {client}"


def _rows(parts: Parts) -> tuple[Ints, np.ndarray]:
    """The client of every index, and whether it is one of its test samples."""
    sizes = np.stack([parts.train_sizes, parts.test_sizes], axis=1).ravel()
    row = np.arange(len(sizes)).repeat(sizes)
    return row // 2, row % 2 == 1


def _client_at(position: int, parts: Parts) -> int:
    ends = np.cumsum(parts.train_sizes + parts.test_sizes)
    return int(np.searchsorted(ends, position, side="right"))


def _place(sample: int, samples: Samples) -> str:
    if samples.owners is None or not samples.owner_names:
        return f"sample {sample}"
    return f"sample {sample} of {samples.owner_names[int(samples.owners[sample])]}"


def _type(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
