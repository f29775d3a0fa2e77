"""A package from whatever registry the machine's npm is set up for, with its checksum verified."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, track

from pfl_lightning.data.store import RouteError

T = TypeVar("T")

ANSWER_SECONDS = 10
PACK_SECONDS = 1800


class Package(NamedTuple):
    """An exact version of a package."""

    name: str
    version: str
    sha256: str
    """Of the archive that `npm pack` makes."""
    size: int
    """Of that archive in bytes, for the progress bar."""


def pack(package: Package, scratch: Path) -> Path:
    """Fetch the package's archive into `scratch` without installing or running anything of it, and verify it."""
    npm = shutil.which("npm")
    if npm is None:
        raise RouteError("npm is not on the PATH")
    what = f"{package.name}@{package.version}"
    # its cache goes to the same place and away with it; no retries, so that a machine without network answers soon
    options = ["--cache", str(scratch / "cache"), "--fetch-retries=0", "--ignore-scripts", "--loglevel=error"]
    _run([npm, "view", what, "version", f"--fetch-timeout={ANSWER_SECONDS * 1000}", *options], scratch, ANSWER_SECONDS)
    with _bytes_bar() as bar:
        task = bar.add_task(f"npm pack {what}", total=package.size)
        for _ in _run_slowly([npm, "pack", what, f"--fetch-timeout={PACK_SECONDS * 1000}", *options], scratch):
            bar.update(task, completed=min(package.size, _bytes_below(scratch)))
        bar.update(task, completed=package.size)
    archive = next(scratch.glob("*.tgz"), None)
    if archive is None:
        raise RouteError(f"npm pack {what} made no archive")
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != package.sha256:
            raise RouteError(f"the archive of {what} has another sha256 than expected")
    return archive


def step_bar(items: Iterable[T], description: str, total: int) -> Iterable[T]:
    """Go through `items` with a progress bar on the error stream."""
    console = Console(stderr=True)
    return track(items, description, total=total, console=console, transient=True, disable=not console.is_terminal)


def _bytes_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _run(command: list[str], place: Path, seconds: float) -> None:
    for _ in _run_slowly(command, place, seconds):
        pass


def _run_slowly(command: list[str], place: Path, seconds: float = PACK_SECONDS) -> Iterator[None]:
    """Run a command to its end, handing over control now and then; `RouteError` when it fails or takes too long."""
    process = subprocess.Popen(
        command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + seconds
    try:
        while True:
            try:
                _, said = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    raise RouteError(f"npm gave no answer within {seconds:.0f} s") from None
                yield
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RouteError(_reason(said))


def _reason(said: str) -> str:
    """The line of npm's complaint that tells most."""
    lines = [line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in said.splitlines()]
    telling = [
        line
        for line in lines
        if line and not line.startswith(("code", "syscall", "errno", "A complete log", "npm warn"))
    ]
    return f"npm: {telling[0]}" if telling else "npm failed"


def _bytes_below(place: Path) -> int:
    total = 0
    for path in place.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # npm moves its files while we look
    return total
