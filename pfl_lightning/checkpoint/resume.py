"""Continuing a run from its latest checkpoint, or from an older one where that is broken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from packaging.version import InvalidVersion, Version

from pfl_lightning import __version__
from pfl_lightning.checkpoint import contents
from pfl_lightning.checkpoint.checkpoints import Checkpoints
from pfl_lightning.checkpoint.files import what_is_wrong
from pfl_lightning.checkpoint.manifest import Manifest, Unusable, list_rounds, manifest_path
from pfl_lightning.checkpoint.tidy import remove_old
from pfl_lightning.cohort import derive_seed
from pfl_lightning.errors import ConfigError

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop


def resume(checkpoints: Checkpoints, fallback: bool) -> int:
    """Load the latest checkpoint on every rank and return its round; 0 where there is none at all.

    Args:
        checkpoints: of the run, whose loop has not begun.
        fallback: whether to go on from an older good checkpoint when the latest is broken; else that is an error
            which names the older one.
    """
    folder, loop = checkpoints.folder, checkpoints.loop
    problems: dict[int, str] = {}
    for round_ in loop.comm.on_first(lambda: _rounds(folder)):
        try:
            manifest = _verified(folder, round_, loop)
        except Unusable as reason:
            problems[round_] = f"the checkpoint of round {round_} in {folder.parent} cannot be used: {reason}"
            continue
        if problems and not fallback:
            use = f"--resume auto --run_dir {folder.parent}"
            problem = next(iter(problems.values()))
            raise ConfigError(f"resume: {problem}; that of round {round_} is good, to continue from it: {use}")
        if loop.comm.rank == 0:
            for problem in problems.values():
                checkpoints.warn(f"{problem}; continuing from round {round_}")
            if manifest.torch != str(torch.__version__):
                checkpoints.warn(f"the run began with torch {manifest.torch}; results may differ in the last digits")
            if manifest.version != __version__:
                checkpoints.warn(
                    f"the run was saved by pfl_lightning {manifest.version}; this one's results may differ"
                )
            if not problems:
                remove_old(folder, manifest, checkpoints.config.keep)  # what a kill left behind
        contents.restore(loop, manifest, folder)
        checkpoints.files, checkpoints.clients = manifest.files, manifest.clients
        checkpoints.saved_round, checkpoints.passed_over = round_, set(problems)
        return round_
    if problems:
        problem = next(iter(problems.values()))
        raise ConfigError(f"resume: {problem}; there is no good one (remove {folder} to start from the beginning)")
    return 0


def latest_readable(folder: Path) -> Manifest | None:
    """The latest manifest that is intact, for its config; its files may be broken."""
    for round_ in _rounds(folder):
        try:
            return Manifest.read(manifest_path(folder, round_))
        except Unusable:
            continue
    return None


def _rounds(folder: Path) -> list[int]:
    try:
        return list_rounds(folder)
    except OSError as error:
        raise ConfigError(f"resume: {folder} cannot be read: {error.strerror}") from error


def _verified(folder: Path, round_: int, loop: FederatedFabricLoop) -> Manifest:
    """Read a manifest and check all it names, the ranks sharing the work; every rank returns, or raises, the same."""

    def read() -> Manifest | str:
        try:
            return Manifest.read(manifest_path(folder, round_))
        except Unusable as reason:
            return str(reason)

    manifest = loop.comm.on_first(read)
    if isinstance(manifest, str):
        raise Unusable(manifest)
    if _is_newer(manifest.version):
        raise Unusable(f"it was written by pfl_lightning {manifest.version}, which is newer than this {__version__}")
    if manifest.layout != loop.server.layout.fingerprint() or len(manifest.clients) != loop.data.num_clients:
        raise Unusable("it is of another model: names, shapes or the number of clients differ")
    if manifest.data != contents.data_fingerprint(loop.data):
        raise Unusable("its clients have other samples")
    if manifest.seed != loop.seed or manifest.rng != derive_seed(loop.seed, "checkpoint", round_):
        raise Unusable("its random numbers are others")
    found = [what_is_wrong(folder, part) for part in manifest.files[loop.comm.rank :: loop.comm.world]]
    for answers in loop.comm.gather(found):
        for problem in answers:
            if problem:
                raise Unusable(problem)
    return manifest


def _is_newer(version: str) -> bool:
    try:
        return Version(version) > Version(__version__)
    except InvalidVersion:
        return False
