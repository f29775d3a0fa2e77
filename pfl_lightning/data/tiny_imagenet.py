"""Tiny-ImageNet, used by the pFedSOP paper."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import torch
from typing_extensions import override

from pfl_lightning.data.download import fetch_file
from pfl_lightning.data.federated import DataSpec, Samples
from pfl_lightning.data.fetch import Route
from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.image_files import FileTree, decode_images, open_tree
from pfl_lightning.data.images import ImageData

FOLDER, ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
ADDRESS, MD5 = f"http://cs231n.stanford.edu/{ARCHIVE}", "90528d7ca1a48142e341f4ef8d21d0de"
ANNOTATIONS = "val/val_annotations.txt"


class TinyImageNet(ImageData):
    """110 000 colour photographs of 200 things, 64x64.

    The official validation part counts as the test part, because the labels of the official test part are secret.
    """

    spec = DataSpec((3, 64, 64), 200)
    sizes = (100_000, 10_000)
    mean, std = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)

    @override
    def by_hand(self) -> str:
        return f"{ARCHIVE} ({ADDRESS}), the folder {FOLDER}, or {super().by_hand()} from another machine"

    @override
    def routes(self) -> list[Route]:
        return [
            Route(f"original files in {self.root}", lambda scratch: self._read(self.root), online=False),
            Route("cs231n.stanford.edu", self._download, online=True),
        ]

    def _download(self, scratch: Path) -> Samples:
        return self._read(fetch_file(ADDRESS, MD5, scratch, ARCHIVE).parent)

    def _read(self, root: Path) -> Samples:
        with open_tree(root, [FOLDER, ARCHIVE]) as tree:
            train, validation = _training_images(tree), _validation_images(tree)
            classes = {name: number for number, name in enumerate(sorted(set(train.values())))}
            if unknown := set(validation.values()) - set(classes):
                raise RouteError(f"{ANNOTATIONS} names {min(unknown)}, which has no folder in train")
            labels = [classes[name] for name in [*train.values(), *validation.values()]]
            images = decode_images(tree, [*train, *validation], self.spec.shape[1], self.name)
        return Samples(images, torch.tensor(labels), len(train))


def _training_images(tree: FileTree) -> dict[PurePosixPath, str]:
    """Return the class of each image train/CLASS/images/NAME.JPEG."""
    return {path: path.parts[1] for path in tree.images() if path.parts[0] == "train" and len(path.parts) > 2}


def _validation_images(tree: FileTree) -> dict[PurePosixPath, str]:
    """Return the class of each image val/images/NAME.JPEG, or val/CLASS/NAME.JPEG in a sorted folder."""
    images = [path for path in tree.images() if path.parts[0] == "val"]
    if PurePosixPath(ANNOTATIONS) not in tree.files:
        if any(path.parts[1] == "images" for path in images):
            raise RouteError(f"{ANNOTATIONS} is missing")
        return {path: path.parts[1] for path in images}
    lines = [line.split("\t") for line in tree.text(ANNOTATIONS).splitlines() if line.strip()]
    classes = {words[0]: words[1] for words in lines}
    if unknown := [path.name for path in images if path.name not in classes]:
        raise RouteError(f"{ANNOTATIONS} does not name {unknown[0]}")
    return {path: classes[path.name] for path in images}
