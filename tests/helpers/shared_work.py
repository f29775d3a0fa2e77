"""Work that hundreds of tests would do again, with the same result, is done once in each process."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jsonargparse import _postponed_annotations
from lightning.fabric.utilities import registry
from matplotlib.figure import Figure
from torch.utils.tensorboard import writer

from pfl_lightning.cli import training
from pfl_lightning.data import Fashion10k
from pfl_lightning.data.federated import Samples


def install() -> None:
    """Let functions remember what they returned for the same arguments. Each is computed once, so errors still show."""
    registry.entry_points = cache(registry.entry_points)  # each new Fabric reads the metadata of all installed packages
    # each command asks 70 times what the class of a net returns, which takes source files to answer
    _postponed_annotations.get_return_type = cache(_postponed_annotations.get_return_type)
    _unpack_images_once()
    _draw_partitions_once()


def _unpack_images_once() -> None:
    """Each data set gets a copy of its own."""
    unpack = Fashion10k.load
    images = cache(lambda: unpack(Fashion10k(num_clients=1)))

    def load(self: Fashion10k) -> Samples:
        return images()._replace(x=images().x.clone(), y=images().y.clone())

    Fashion10k.load = load  # type: ignore[method-assign]


def _draw_partitions_once() -> None:
    """Each run draws its partition for TensorBoard, a quarter of the time of a short run."""
    draw, render = training.draw_partition, writer.figure_to_image
    images: dict[Figure, Any] = {}

    @cache
    def figure_of(counts: tuple[tuple[int, ...], ...]) -> Figure:
        figure = draw(torch.tensor(counts))
        images[figure] = render(figure)
        return figure

    training.draw_partition = lambda counts: figure_of(tuple(map(tuple, counts.tolist())))
    writer.figure_to_image = lambda figure, close=True: images[figure] if figure in images else render(figure, close)
