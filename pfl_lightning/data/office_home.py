"""OfficeHome: one set of things in four styles, used by the FedSelect paper."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import torch
from typing_extensions import override

from pfl_lightning.data.federated import Samples
from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.image_files import decode_images, open_tree
from pfl_lightning.data.partitions import Natural, Partition
from pfl_lightning.data.resized_images import ResizedImages

FOLDER = "OfficeHomeDataset_10072016"
NAMES = (FOLDER, f"{FOLDER}.zip", "OfficeHome", "OfficeHome.zip")
DOMAINS = ("Art", "Clipart", "Product", "Real World")
NATURAL = Natural()


class OfficeHome(ResizedImages):
    """15 588 colour images of 65 things from an office or a home, in the domains Art, Clipart, Product and Real World.

    By default each domain is one client. There is no official split. Pixels are normalised with the statistics of
    ImageNet.

    Args:
        size: height and width to which the images are resized. 224 suits nets that were trained on ImageNet. All
            images together take 2.3 GB then, and 190 MB with 64.
        num_clients: number of clients. 4 gives one for each domain.
        partition: the rule that deals the samples to the clients.
        **kwargs: as for every image set.
    """

    sizes = (0, 15_588)
    num_classes = 65

    def __init__(
        self, size: int = 224, num_clients: int = len(DOMAINS), partition: Partition = NATURAL, **kwargs: Any
    ) -> None:
        super().__init__(size=size, num_clients=num_clients, partition=partition, **kwargs)

    @override
    def by_hand(self) -> str:
        return (
            f"the folder {FOLDER} or {FOLDER}.zip with images in DOMAIN/CLASS/, where DOMAIN is "
            f"{', '.join(DOMAINS[:-1])} or {DOMAINS[-1]}, or {super().by_hand()} from another machine"
        )

    @override
    def read_files(self, root: Path) -> Samples:
        with open_tree(root, NAMES) as tree:
            domains = {path: number for path in tree.images() if (number := _domain(path)) is not None}
            if missing := set(range(len(DOMAINS))) - set(domains.values()):
                raise RouteError(f"there is no image in {DOMAINS[min(missing)]}")
            names = sorted({path.parts[1] for path in domains})
            labels = [names.index(path.parts[1]) for path in domains]
            images = decode_images(tree, list(domains), self.size, self.name)
        return Samples(images, torch.tensor(labels), 0, torch.tensor(list(domains.values())), DOMAINS)


def _domain(path: PurePosixPath) -> int | None:
    """Return the number of the domain of DOMAIN/CLASS/NAME.jpg, or None for other files."""
    words = [domain.replace(" ", "").lower() for domain in DOMAINS]
    word = path.parts[0].replace(" ", "").replace("_", "").lower()
    return words.index(word) if len(path.parts) == 3 and word in words else None
