"""Mistakes in an algorithm that a single visit shows. Each one ends the run with one line."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Upload
from pfl_lightning.engine.mistakes import check_memory, error_of, form_of, kind_of
from pfl_lightning.model.client import ClientModule


def check_visit(client: ClientModule, upload: Upload, algorithm: Algorithm) -> None:
    """Refuse an upload, a mask or a memory that the loop cannot use."""
    if not isinstance(upload, Upload):
        raise error_of(algorithm, "upload", f"returns {kind_of(upload)} instead of an Upload")
    if upload.client != client.id or not 0 <= upload.weight <= 1 + 1e-9:
        found = f"Upload({upload.client}, …, {upload.weight})"
        raise error_of(algorithm, "upload", f"returns {found} for client {client.id}; use client.id and client.weight")
    if client.vector is not client.live:
        raise error_of(algorithm, "", "assigns client.vector, which disconnects it from the model; use copy_")
    check_mask(client, algorithm)
    for name, sends in upload.sends.items():
        if name in upload.values and sends.shape != upload.values[name].shape:
            raise error_of(algorithm, "upload", f"has sends[{name!r}] that does not match values[{name!r}]")
    check_memory(client.memory, "client.memory", algorithm)


def check_mask(client: ClientModule, algorithm: Algorithm) -> None:
    """Refuse a mask that does not fit the model."""
    if client.mask.dtype != torch.bool or client.mask.shape != client.vector.shape:
        problem = f"makes client.mask {form_of(client.mask)}; it must be bool {list(client.vector.shape)}"
        raise error_of(algorithm, "", problem)


def check_sums(sums: Tensor, client: ClientModule, algorithm: Algorithm) -> Tensor:
    """The answer of a test, if it is a tensor with one value per sum of the task."""
    if not isinstance(sums, Tensor) or sums.shape != (len(client.task.sums),):
        found = f"a tensor {list(sums.shape)}" if isinstance(sums, Tensor) else kind_of(sums)
        wanted = f"a tensor with {len(client.task.sums)} values, one per name in task.sums"
        raise error_of(algorithm, "test", f"returns {found}; use {wanted}")
    return sums
