"""Data sets that torchvision reads and downloads, with its checksums."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.data.download import STALL_SECONDS, check_reachable, file_md5, socket_timeout
from pfl_lightning.data.federated import Samples
from pfl_lightning.data.fetch import Route
from pfl_lightning.data.file_format import RouteError


@dataclass(frozen=True)
class Official:
    """A data set that torchvision provides."""

    kind: str
    """Name of the class in torchvision.datasets."""
    files: str
    """Files that torchvision reads below the root directory, for messages."""
    archives: dict[str, str] = field(default_factory=dict)
    """MD5 of each original archive by its path below the root. The archives may stand in for the unpacked files."""
    train: dict[str, Any] = field(default_factory=lambda: {"train": True})
    """Arguments that select the training part."""
    test: dict[str, Any] = field(default_factory=lambda: {"train": False})
    """Arguments that select the test part."""
    transposed: bool = False
    """True if the original images have rows and columns exchanged."""
    needs: str = ""
    """Python package that torchvision needs to read the files. Empty if none."""

    def routes(self, root: Path) -> list[Route]:
        """Return two routes: the files in `root`, then torchvision's download."""
        return [
            Route(f"original files in {root}", lambda scratch: self._from_root(root, scratch), online=False),
            Route("torchvision", self._download, online=True),
        ]

    def _from_root(self, root: Path, scratch: Path) -> Samples:
        if self.archives and all((root / place).is_file() for place in self.archives):
            for place, md5 in self.archives.items():
                if file_md5(root / place) != md5:
                    raise RouteError(f"{place} is damaged: its MD5 differs")
                (scratch / place).parent.mkdir(parents=True, exist_ok=True)
                (scratch / place).symlink_to((root / place).resolve())
            return self._read(scratch, unpack=True)
        return self._read(root, unpack=False)

    def _download(self, scratch: Path) -> Samples:
        self._check_needs()
        check_reachable(_addresses(_torchvision(self.kind)))
        with socket_timeout(STALL_SECONDS):
            return self._read(scratch, unpack=True)

    def _read(self, root: Path, unpack: bool) -> Samples:
        self._check_needs()
        try:
            parts = [_torchvision(self.kind)(str(root), download=unpack, **part) for part in (self.train, self.test)]
        except (RuntimeError, FileNotFoundError) as error:
            raise RouteError("not there or damaged" if not unpack else str(error)) from error
        images, labels = [_images(part) for part in parts], [_labels(part) for part in parts]
        x = torch.cat(images)
        return Samples(x.transpose(1, 2).contiguous() if self.transposed else x, torch.cat(labels), len(labels[0]))

    def _check_needs(self) -> None:
        if self.needs and importlib.util.find_spec(self.needs) is None:
            raise RouteError(f"needs the Python package {self.needs}, which is not installed")


def _torchvision(kind: str) -> Any:
    # imported here because it takes seconds, and a set in our own file format does not need it
    return getattr(importlib.import_module("torchvision.datasets"), kind)


def _addresses(kind: Any) -> list[str]:
    if hasattr(kind, "split_list"):
        return [kind.split_list["train"][0]]
    if hasattr(kind, "url"):
        return [kind.url]
    return [mirror + kind.resources[0][0] for mirror in kind.mirrors]


def _images(part: Any) -> Tensor:
    """Return bytes [N, H, W, C]. Torchvision holds [N, H, W], [N, H, W, C] or [N, C, H, W]."""
    x: Tensor = torch.as_tensor(part.data)
    if x.ndim == 3:
        return x.unsqueeze(-1)
    return x if x.shape[-1] == 3 else x.permute(0, 2, 3, 1).contiguous()


def _labels(part: Any) -> Tensor:
    return torch.as_tensor(part.targets if hasattr(part, "targets") else part.labels, dtype=torch.int64)
