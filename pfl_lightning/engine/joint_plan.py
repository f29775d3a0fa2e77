"""Which samples several clients train on at each step when they train together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.local_training import Training, batch_sizes


class Batches(NamedTuple):
    """The batches of one client's training: its samples in their order, and the size of each batch."""

    order: np.ndarray
    sizes: list[int]


class Turn(NamedTuple):
    """One step of neighbouring rows. Smaller batches than the largest are filled up with samples of weight 0.

    Attributes:
        rows: the first row and the one after the last.
        step: the number of the step.
        sizes: the number of real samples of each row.
        indices: the samples. # [rows, largest size]
        weights: one over the size of the batch, or 0. # [rows, largest size]
    """

    rows: slice
    step: int
    sizes: list[int]
    indices: np.ndarray
    weights: np.ndarray


def list_batches(client: ClientModule, training: Training) -> Batches:
    """The batches that `iter_batches` would yield."""
    epochs = client.local.epochs if training.epochs is None else training.epochs
    steps = training.steps
    numbers: Iterable[int] = range(epochs) if steps is None else itertools.count()
    orders, sizes = [np.empty(0, dtype=np.int64)], list[int]()
    for epoch in numbers if client.num_samples else ():
        if steps is not None and len(sizes) >= steps:
            break
        orders.append(client.order(f"{training.stream}{epoch}").numpy())
        sizes += batch_sizes(client.num_samples, client.local.batch_size)
    return Batches(np.concatenate(orders), sizes[:steps])


def list_turns(batches: Mapping[int, Batches]) -> Iterator[Turn]:
    """The turns of some rows, in the order of their steps."""
    starts = dict.fromkeys(batches, 0)
    for step in range(max((len(own.sizes) for own in batches.values()), default=0)):
        active = [row for row, own in sorted(batches.items()) if step < len(own.sizes)]
        for rows in _neighbours(active):
            sizes = [batches[row].sizes[step] for row in rows]
            indices = np.empty((len(rows), max(sizes)), dtype=np.int64)
            weights = np.zeros(indices.shape, dtype=np.float32)
            for place, (row, size) in enumerate(zip(rows, sizes, strict=True)):
                indices[place] = batches[row].order[starts[row]]
                indices[place, :size] = batches[row].order[starts[row] : starts[row] + size]
                weights[place, :size] = 1 / size
                starts[row] += size
            yield Turn(slice(rows[0], rows[-1] + 1), step, sizes, indices, weights)


def chunks(turns: Iterable[Turn], samples: int) -> Iterator[list[Turn]]:
    """Lists of successive turns with at most so many samples, or one turn."""
    chunk, total = list[Turn](), 0
    for turn in turns:
        if chunk and total + turn.indices.size > samples:
            yield chunk
            chunk, total = [], 0
        chunk.append(turn)
        total += turn.indices.size
    if chunk:
        yield chunk


def _neighbours(rows: Sequence[int]) -> list[list[int]]:
    """Ascending numbers, cut where one is missing."""
    runs = list[list[int]]()
    for row in rows:
        if runs and runs[-1][-1] == row - 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs
