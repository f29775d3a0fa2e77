"""Mini-ImageNet, used by the FedSelect paper."""

from __future__ import annotations

import csv
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from typing_extensions import override

from pfl_lightning.data.federated import Samples
from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.image_files import FileTree, decode_images, open_tree
from pfl_lightning.data.resized_images import ResizedImages

NAMES = ("mini-imagenet", "mini-imagenet.zip", "miniimagenet", "miniimagenet.zip")


class MiniImageNet(ResizedImages):
    """60 000 colour photographs of 100 things, 600 of each.

    The folder mini-imagenet holds one folder per class, with or without train, val and test above them, or the few-shot
    splits train.csv, val.csv and test.csv (columns filename and label) beside a folder of all images. These splits
    separate classes, not images. All of them are merged, so there is no official split into training and test images.
    Pixels are normalised with the statistics of ImageNet.

    Args:
        size: height and width of the images. Larger and smaller files are resized.
        **kwargs: as for every image set.
    """

    sizes = (0, 60_000)
    num_classes = 100

    def __init__(self, size: int = 84, **kwargs: Any) -> None:
        super().__init__(size=size, **kwargs)

    @override
    def by_hand(self) -> str:
        return (
            f"the folder {NAMES[0]} or {NAMES[1]} with one folder per class, or with train.csv, val.csv, test.csv and "
            f"the images they name, or {super().by_hand()} from another machine"
        )

    @override
    def read_files(self, root: Path) -> Samples:
        with open_tree(root, NAMES) as tree:
            tables = [path for path in tree.files if path.name in ("train.csv", "val.csv", "test.csv")]
            if tables:
                images = _images_of_tables(tree, sorted(tables))
            else:
                images = {path: path.parent.name for path in tree.images()}
            classes = {name: number for number, name in enumerate(sorted(set(images.values())))}
            labels = [classes[name] for name in images.values()]
            return Samples(decode_images(tree, list(images), self.size, self.name), torch.tensor(labels), 0)


def _images_of_tables(tree: FileTree, tables: list[PurePosixPath]) -> dict[PurePosixPath, str]:
    """Return the class of each image that the tables name, sorted by path."""
    by_name = {path.name: path for path in tree.images()}
    classes: dict[PurePosixPath, str] = {}
    for table in tables:
        for row in csv.DictReader(tree.text(str(table)).splitlines()):
            if not {"filename", "label"} <= set(row):
                raise RouteError(f"{table} needs the columns filename and label")
            if row["filename"] not in by_name:
                raise RouteError(f"{table} names {row['filename']}, which is not there")
            classes[by_name[row["filename"]]] = row["label"]
    return dict(sorted(classes.items()))
