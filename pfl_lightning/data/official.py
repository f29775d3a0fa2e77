"""Original files, read and downloaded by torchvision, which checks them against known checksums."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor

from pfl_lightning.data.federated import Samples
from pfl_lightning.data.fetch import Route
from pfl_lightning.data.store import RouteError

ANSWER_SECONDS = 5.0
STALL_SECONDS = 30.0


@dataclass(frozen=True)
class Official:
    """A data set as torchvision knows it."""

    kind: str
    """Name of the class in torchvision.datasets."""
    files: str
    """What torchvision reads below the root directory, as told to the user."""
    archives: dict[str, str] = field(default_factory=dict)
    """MD5 of the original archives by their place below the root; they serve as well as the unpacked files."""
    train: dict[str, Any] = field(default_factory=lambda: {"train": True})
    """Arguments that choose the training part."""
    test: dict[str, Any] = field(default_factory=lambda: {"train": False})
    transposed: bool = False
    """Whether rows and columns of the original images are exchanged."""
    needs: str = ""
    """A package that torchvision needs to read the files."""

    def routes(self, root: Path) -> list[Route]:
        """The files in `root`, then torchvision's download."""
        return [
            Route(f"original files in {root}", lambda scratch: self._from_root(root, scratch), online=False),
            Route("torchvision", self._download, online=True),
        ]

    def _from_root(self, root: Path, scratch: Path) -> Samples:
        if self.archives and all((root / place).is_file() for place in self.archives):
            for place, md5 in self.archives.items():
                if _md5(root / place) != md5:
                    raise RouteError(f"{place} is damaged")
                (scratch / place).parent.mkdir(parents=True, exist_ok=True)
                (scratch / place).symlink_to((root / place).resolve())
            return self._read(scratch, unpack=True)
        return self._read(root, unpack=False)

    def _download(self, scratch: Path) -> Samples:
        self._check_needs()
        check_reachable(_addresses(_torchvision(self.kind)))
        with _socket_timeout(STALL_SECONDS):
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


def check_reachable(addresses: list[str]) -> None:
    """Raise a `RouteError` when none of the addresses answers within seconds.

    In threads of their own, because looking up a name without network can block for longer than any timeout.
    """
    reasons = dict.fromkeys(addresses, "no answer")

    def ask(address: str) -> None:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "pfl_lightning"})
        try:
            urllib.request.urlopen(request, timeout=ANSWER_SECONDS).close()
            reasons[address] = ""
        except urllib.error.HTTPError:
            reasons[address] = ""  # somebody is there; the download itself will say what is wrong
        except urllib.error.URLError as error:
            reasons[address] = getattr(error.reason, "strerror", None) or str(error.reason)
        except OSError as error:
            reasons[address] = error.strerror or str(error)

    threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ANSWER_SECONDS + 1)
    if all(reasons.values()):
        raise RouteError("; ".join(f"cannot reach {urlparse(a).hostname}: {why}" for a, why in reasons.items()))


def _torchvision(kind: str) -> Any:
    # imported here because it takes seconds, and a set that is in our format does not need it
    return getattr(importlib.import_module("torchvision.datasets"), kind)


def _addresses(kind: Any) -> list[str]:
    if hasattr(kind, "split_list"):
        return [kind.split_list["train"][0]]
    if hasattr(kind, "url"):
        return [kind.url]
    return [mirror + kind.resources[0][0] for mirror in kind.mirrors]


def _images(part: Any) -> Tensor:
    """Bytes [N, H, W, C] from what torchvision holds: [N, H, W], [N, H, W, C] or [N, C, H, W]."""
    x: Tensor = torch.as_tensor(part.data)
    if x.ndim == 3:
        return x.unsqueeze(-1)
    return x if x.shape[-1] == 3 else x.permute(0, 2, 3, 1).contiguous()


def _labels(part: Any) -> Tensor:
    return torch.as_tensor(part.targets if hasattr(part, "targets") else part.labels, dtype=torch.int64)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
