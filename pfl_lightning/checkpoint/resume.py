"""Loading the latest good checkpoint of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from packaging.version import InvalidVersion, Version

from pfl_lightning import __version__
from pfl_lightning.checkpoint import contents
from pfl_lightning.checkpoint.checkpoints import Checkpoints
from pfl_lightning.checkpoint.files import problem_with
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.checkpoint.sealed import Unusable, WrongFormat
from pfl_lightning.checkpoint.slots import restored_slots
from pfl_lightning.checkpoint.tidy import remove_unneeded
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.seeds import derive_seed

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop


def resume(checkpoints: Checkpoints, fallback: bool) -> int:
    """Load the latest checkpoint on every rank and return its round. 0 if there is none.

    Args:
        checkpoints: those of the run. Its loop must not have started.
        fallback: whether to use an older good checkpoint if the latest is broken. Without it, a broken latest
            checkpoint is an error that names the older one.
    """
    folder, loop = checkpoints.folder, checkpoints.loop
    good: list[Manifest] = []
    problems: dict[int, str] = {}
    for round_ in loop.comm.run_on_rank_zero(lambda: _rounds(folder)):
        try:
            manifest = _verified(checkpoints, round_)
        except Unusable as reason:
            problems[round_] = f"the checkpoint of round {round_} in {folder.parent} cannot be used: {reason}"
        else:
            if not good and problems and not fallback:
                older = f"; the one of round {round_} is good, use it with --resume auto --run_dir {folder.parent}"
                raise ConfigError(f"resume: {next(iter(problems.values()))}{older}")
            good.append(manifest)
    if not good:
        if problems:
            raise ConfigError(
                f"resume: {next(iter(problems.values()))}; no other checkpoint is good; start again in a new run_dir"
            )
        return 0
    _continue_from(checkpoints, good)
    if loop.comm.rank == 0:
        _report(checkpoints, good[0], problems)
        if not problems:  # otherwise nothing is removed before the next checkpoint is complete
            needed = {name for slot in checkpoints.slots for name in slot.names(folder)}
            remove_unneeded(folder, needed)
    return good[0].round


def latest_readable(folder: Path) -> Manifest | None:
    """The latest intact manifest, for its config. Its files may be broken. Raises a `ConfigError` for other formats."""
    for round_ in _rounds(folder):
        try:
            return Manifest.read(manifest_path(folder, round_))
        except WrongFormat as reason:
            raise _wrong_format(round_, folder, reason) from reason
        except Unusable:
            continue
    return None


def _continue_from(checkpoints: Checkpoints, good: list[Manifest]) -> None:
    """Load the latest of the good checkpoints, and go on using the files of the others."""
    callbacks, folder = checkpoints.callbacks, checkpoints.folder
    checkpoints.loaded_results = contents.restore(checkpoints.loop, callbacks, good[0], folder)
    checkpoints.slots = restored_slots(checkpoints.config.keep, good[0], good[1:])
    checkpoints.saved_round = good[0].round


def _report(checkpoints: Checkpoints, loaded: Manifest, problems: dict[int, str]) -> None:
    for round_, problem in problems.items():
        what_next = f"continuing from round {loaded.round}" if round_ > loaded.round else "the next one replaces it"
        checkpoints.warn(f"{problem}; {what_next}")
    if loaded.torch != str(torch.__version__):
        checkpoints.warn(f"the run was saved with torch {loaded.torch}; results may differ in the last digits")
    if loaded.version != __version__:
        checkpoints.warn(f"the run was saved by pfl_lightning {loaded.version}; results may differ with {__version__}")


def _rounds(folder: Path) -> list[int]:
    try:
        return list_rounds(folder)
    except OSError as error:
        raise ConfigError(f"resume: {folder} cannot be read: {error.strerror}") from error


def _verified(checkpoints: Checkpoints, round_: int) -> Manifest:
    """Read a manifest and check all its files. The ranks share the work, and all return or raise the same."""
    folder, loop = checkpoints.folder, checkpoints.loop
    manifest = loop.comm.run_on_rank_zero(lambda: _read(folder, round_))
    if isinstance(manifest, str):
        raise Unusable(manifest)
    _check_identity(manifest, checkpoints)
    found = [problem_with(folder, part) for part in manifest.files[loop.comm.rank :: loop.comm.world]]
    for answers in loop.comm.gather(found):
        for problem in answers:
            if problem:
                raise Unusable(problem)
    return manifest


def _read(folder: Path, round_: int) -> Manifest | str:
    try:
        return Manifest.read(manifest_path(folder, round_))
    except WrongFormat as reason:
        raise _wrong_format(round_, folder, reason) from reason
    except Unusable as reason:
        return str(reason)


def _check_identity(manifest: Manifest, checkpoints: Checkpoints) -> None:
    """Refuse a checkpoint of another version, model, data set or seed."""
    loop: FederatedFabricLoop = checkpoints.loop
    if _is_newer(manifest.version):
        raise Unusable(f"it was written by pfl_lightning {manifest.version}, which is newer than this {__version__}")
    if manifest.layout != loop.server.layout.fingerprint() or len(manifest.clients) != loop.data.num_clients:
        raise Unusable("it belongs to another model: names, shapes or the number of clients differ")
    found = loop.comm.gather(checkpoints.data_fingerprint)
    if changed := [loop.comm.hosts[rank] for rank, data in enumerate(found) if data != manifest.data]:
        place = "" if len(changed) == loop.comm.world else f" on {', '.join(dict.fromkeys(changed))}"
        raise Unusable(f"the data{place} have changed: samples, their values or their clients differ from the run's")
    if manifest.seed != loop.seed or manifest.rng != derive_seed(loop.seed, "checkpoint", manifest.round):
        raise Unusable("it was written with another seed or another random number scheme")


def _wrong_format(round_: int, folder: Path, reason: WrongFormat) -> ConfigError:
    return ConfigError(f"resume: the checkpoint of round {round_} in {folder.parent} cannot be used: {reason}")


def _is_newer(version: str) -> bool:
    try:
        return Version(version) > Version(__version__)
    except InvalidVersion:
        return False
