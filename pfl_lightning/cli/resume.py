"""`--resume`: which directory, and with which config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml
from jsonargparse import Namespace

from pfl_lightning.checkpoint.differences import refuse_differences
from pfl_lightning.checkpoint.manifest import Manifest, Unusable, list_rounds, manifest_path
from pfl_lightning.checkpoint.resume import latest_readable
from pfl_lightning.cli.run_dir import check_start_or_continue
from pfl_lightning.errors import ConfigError

AUTO = "auto"


def stored_config(argv: list[str]) -> list[str]:
    """For `--resume DIR`: the config that the run was started with, to be read before the rest of the command."""
    run_dir = _resume_option(argv)
    if run_dir in (None, AUTO):
        return []
    config = yaml.safe_load(_manifest(Path(run_dir or "")).config)
    return ["--config", yaml.safe_dump({key: config[key] for key in config if key not in ("run_dir", "resume")})]


def resumed_run_dir(config: Namespace, config_text: str, complete: Callable[[str], str]) -> Path:
    """The directory of the run that goes on, after a check that the config fits; with `auto` it may be a new one.

    Args:
        config: of this command.
        config_text: the same, resolved.
        complete: adds to the stored config what it does not have because its version did not know it.
    """
    if config.resume == AUTO:
        if config.run_dir is None:
            raise ConfigError("resume: auto needs run_dir, the directory of the run to start or to continue")
        path = Path(config.run_dir)
        check_start_or_continue(path)
        stored = latest_readable(path / "checkpoints")
    else:
        path = Path(config.resume)
        stored = _manifest(path)
        if config.run_dir is not None and Path(config.run_dir).resolve() != path.resolve():
            raise ConfigError(f"run_dir: {config.run_dir} is not the run that is resumed; leave it out")
    if stored is not None:
        refuse_differences(complete(stored.config), config_text)
    return path


def _manifest(run_dir: Path) -> Manifest:
    folder = run_dir / "checkpoints"
    found = latest_readable(folder)
    if found is not None:
        return found
    for round_ in list_rounds(folder):
        try:
            Manifest.read(manifest_path(folder, round_))
        except Unusable as reason:
            raise ConfigError(
                f"resume: the checkpoint of round {round_} in {run_dir} cannot be used: {reason}; there is no good one"
            ) from reason
    raise ConfigError(f"resume: there is no checkpoint in {run_dir}; use the directory of a run, or auto with run_dir")


def _resume_option(argv: list[str]) -> str | None:
    """The last `--resume` on the command line: it is needed before the parser can read the rest."""
    found = None
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option == "--resume":
            found = value if equals else following
    return found
