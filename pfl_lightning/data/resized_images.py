"""Image sets that the user copies to `root`, resized to one size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from pfl_lightning.data.federated import DataSpec, Samples
from pfl_lightning.data.fetch import Route
from pfl_lightning.data.images import ImageData
from pfl_lightning.foundation.errors import require


class ResizedImages(ImageData):
    """Colour images in files of any size. Pixels are normalised with the statistics of ImageNet.

    Args:
        size: height and width to which the images are resized.
        **kwargs: as for every image set.
    """

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    num_classes: int

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(size >= 8, "size", size, "8 or more")
        self.size = size
        self.spec = DataSpec((3, size, size), self.num_classes)

    @property
    @override
    def name(self) -> str:
        return f"{type(self).__name__}_{self.size}"

    @override
    def routes(self) -> list[Route]:
        return [Route(f"image files in {self.root}", lambda scratch: self.read_files(self.root), online=False)]

    def read_files(self, root: Path) -> Samples:
        """Find the files below `root` and decode them. Raises a `RouteError` if they are not there."""
        raise NotImplementedError
