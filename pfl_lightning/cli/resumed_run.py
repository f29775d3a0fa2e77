"""`--resume`: which directory to continue, and with which config."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace

from pfl_lightning.checkpoint.differences import refuse_differences
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.checkpoint.marker import MARKER_NAME, Marker, read_marker
from pfl_lightning.checkpoint.resume import latest_readable
from pfl_lightning.checkpoint.sealed import Unusable
from pfl_lightning.cli.own_code import add_to_path
from pfl_lightning.cli.run_dir import USE_ANOTHER, check_directory, check_free, content
from pfl_lightning.cli.trust import is_trusted, require_trust
from pfl_lightning.foundation.errors import ConfigError

AUTO = "auto"
STORED_KEYS = (
    "algorithm", "task", "data", "loop", "fabric", "checkpoint", "store", "report", "callbacks", "loggers", "seed",
)  # fmt: skip
"""Keys read from a run directory. Others, such as `config`, could point to further files."""
SHOWN_NAMES = 3


def stored_config(argv: list[str]) -> list[str]:
    """For `--resume DIR`: the config of that run, which is read before the rest of the command line."""
    run_dir = _option(argv, "--resume")
    if run_dir is None or run_dir == AUTO:
        return []
    require_name("resume", run_dir)
    path = Path(run_dir)
    stored: dict[str, Any] = yaml.safe_load(_latest_manifest(path).config) or {}
    config = {key: stored[key] for key in STORED_KEYS if key in stored}
    require_trust(config, path, argv)
    add_to_path(stored_folders(argv))
    return ["--config", yaml.safe_dump(config)]


def require_name(key: str, name: str | None) -> None:
    """Refuse an empty name, such as that of an unset shell variable: it would mean the working directory."""
    if name is not None and not name.strip():
        raise ConfigError(f"{key}: the value is missing; use --{key} DIR")


def stored_folders(argv: list[str]) -> list[str]:
    """For `--resume DIR --trust`: the folders in which that run found the user's own classes."""
    run_dir = _option(argv, "--resume")
    if run_dir in (None, AUTO) or not is_trusted(argv):
        return []
    try:
        marker = read_marker(Path(run_dir or ""))
    except Unusable:
        return []
    return list(marker.code) if marker else []


def needs_trust(argv: list[str]) -> bool:
    """Whether code in the working directory needs `--trust`, which is missing.

    That is so if a run is continued by its directory, or if the command is given inside of that directory.
    """
    resumed, run_dir = _option(argv, "--resume"), _option(argv, "--run_dir")
    is_inside = run_dir is not None and Path(os.path.realpath(".")).is_relative_to(os.path.realpath(run_dir))
    return (resumed not in (None, AUTO) or is_inside) and not is_trusted(argv)


def resumed_run_dir(config: Namespace) -> Path:
    """The directory of the run to continue. With `auto` it may be a new one."""
    if config.resume == AUTO:
        if config.run_dir is None:
            raise ConfigError("resume: auto needs run_dir, the directory of the run to start or to continue")
        return Path(config.run_dir)
    path = Path(config.resume)
    if config.run_dir is not None and Path(config.run_dir).resolve() != path.resolve():
        raise ConfigError(f"run_dir: {config.run_dir} is not the resumed run; leave run_dir out")
    if not content(path):
        raise ConfigError(f"resume: there is no run in {path}")
    return path


def check_resumable(path: Path, config_text: str, complete: Callable[[str], str]) -> None:
    """Refuse a directory with anything in it other than this very run, or anything that this run would overwrite.

    Args:
        path: the directory. It may be free, because `--resume auto` also starts runs.
        config_text: the resolved config of this command.
        complete: adds settings to a stored config that did not exist when it was written.
    """
    check_directory(path)
    if not content(path):
        check_free(path)
        return
    manifest = latest_readable(path / "checkpoints")
    if manifest is not None:
        refuse_differences(manifest.config, config_text, complete)
        return
    problem, marker = _without_checkpoint(path)
    if problem:
        raise ConfigError(f"run_dir: {problem}")
    assert marker is not None, "otherwise there is a problem"
    refuse_differences(marker.config, config_text, complete)


def _latest_manifest(path: Path) -> Manifest:
    """The latest intact manifest of a run directory."""
    manifest = latest_readable(path / "checkpoints")
    if manifest is None:
        problem, _ = _without_checkpoint(path)
        not_yet = f"the run in {path} has no checkpoint yet; start it again with its own command and --resume auto"
        raise ConfigError(f"resume: {problem or not_yet}")
    return manifest


def _without_checkpoint(path: Path) -> tuple[str | None, Marker | None]:
    """Why a directory without a readable checkpoint cannot be used; or None, and the marker of a run to start again."""
    rounds = list_rounds(path / "checkpoints")
    try:
        marker = read_marker(path)
    except Unusable as reason:
        return f"{path} has no checkpoint to continue from, and {reason}; {USE_ANOTHER}", None
    if rounds:
        return _why_unusable(path, rounds[0]), marker
    if marker is None:
        names = content(path)
        shown = ", ".join(names[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")
        there = f"{path} has files in it ({shown}) but no {MARKER_NAME}" if names else f"there is no run in {path}"
        return (f"{there}, so it is not a run of pfl-fit; {USE_ANOTHER}" if names else there), None
    if (path / "summary.json").exists():
        return f"{path} is a finished run without checkpoints, which would be overwritten; {USE_ANOTHER}", marker
    if marker.has_checkpoint:
        return f"the checkpoints of {path} were removed, so its run cannot be continued; {USE_ANOTHER}", marker
    return None, marker


def _why_unusable(path: Path, round_: int) -> str:
    try:
        Manifest.read(manifest_path(path / "checkpoints", round_))
    except Unusable as reason:
        return f"the checkpoint of round {round_} in {path} cannot be used: {reason}; no other checkpoint is good"
    return f"the checkpoint of round {round_} in {path} could not be read a moment ago; try again"


def _option(argv: list[str], name: str) -> str | None:
    """The last value of an option on the command line. It is needed before the parser can read the rest."""
    found = None
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option == name:
            found = value if equals else following
    return found
