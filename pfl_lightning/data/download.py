"""Downloads that fail fast on machines without network and verify each file before use."""

from __future__ import annotations

import hashlib
import importlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

from pfl_lightning.data.file_format import RouteError

ANSWER_SECONDS = 5.0
STALL_SECONDS = 30.0


def fetch_file(address: str, md5: str, scratch: Path, name: str) -> Path:
    """Download a file to `scratch/name` and verify its MD5, or raise a `RouteError`."""
    check_reachable([address])
    # imported here because torchvision takes seconds to import
    utils = importlib.import_module("torchvision.datasets.utils")
    try:
        with socket_timeout(STALL_SECONDS):
            utils.download_url(address, str(scratch), name, md5)
    except RuntimeError as error:
        raise RouteError(f"{name} was downloaded but its MD5 differs") from error
    return scratch / name


def check_reachable(addresses: list[str]) -> None:
    """Raise a `RouteError` if none of the addresses answers within seconds.

    Each request runs in its own thread, because a name lookup without network can block longer than any timeout.
    """
    reasons = dict.fromkeys(addresses, "no answer")

    def ask(address: str) -> None:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "pfl_lightning"})
        try:
            urllib.request.urlopen(request, timeout=ANSWER_SECONDS).close()
            reasons[address] = ""
        except urllib.error.HTTPError:
            reasons[address] = ""  # the server answers, and the download itself will report any error
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


def file_md5(path: Path) -> str:
    """Return the MD5 of a file, which data set publishers use as a checksum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def socket_timeout(seconds: float) -> Iterator[None]:
    """Set the default timeout of new sockets inside the block, so that a stalled download ends."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
