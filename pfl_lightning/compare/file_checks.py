"""Checks that the parts of an experiment file share. Every mistake ends in one line that names the key."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_lightning.compare.experiment import Keys
from pfl_lightning.foundation.errors import ConfigError, require

COMMAND_KEYS = ("seed", "run_dir", "resume", "config")
"""Keys of a run that the comparison sets itself."""


def as_mapping(content: object, where: str) -> Mapping[str, Any]:
    """Keys with values, or a `ConfigError`."""
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: {content!r} is not allowed; use keys with values")
    return content


def only_known(content: Mapping[str, Any], allowed: Sequence[str], where: str = "") -> None:
    """Refuse keys that do not exist, and name the most similar one first."""
    for key in content:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, 1, 0.4)
            words = [*near, *(word for word in allowed if word not in near)]
            raise ConfigError(f"{where}{key}: no such key; use {' | '.join(words)}")


def as_keys(content: object, where: str) -> Keys:
    """Keys of a run with their values."""
    content = as_mapping(content, where)
    for key in content:
        check_key(key, where)
    return {str(key): value for key, value in content.items()}


def check_key(key: object, where: str) -> None:
    """Refuse keys that the comparison sets itself."""
    fine = isinstance(key, str) and key.partition(".")[0] not in COMMAND_KEYS
    require(fine, where, key, "a key of a config; the comparison sets seed, run_dir and resume itself")


def as_labels(content: object, where: str) -> list[str]:
    """A list of different labels."""
    if not isinstance(content, list):
        raise ConfigError(f"{where}: {content!r} is not allowed; use a list of labels")
    labels = [str(label) for label in content]
    require(len(set(labels)) == len(labels), where, content, "each label once")
    return labels


def matching(patterns: Sequence[str], labels: Sequence[str], where: str) -> list[str]:
    """The labels that one of the patterns names. `*` and `?` match any letters."""
    for pattern in patterns:
        found = pattern in labels or bool(fnmatch.filter(labels, pattern))
        require(found, where, pattern, " | ".join(labels))
    return [label for label in labels if label in patterns or any(fnmatch.fnmatchcase(label, p) for p in patterns)]


def is_whole(value: object, least: int = 0) -> bool:
    """Whether it is a whole number of at least this size."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def as_number(value: object, where: str) -> float:
    """A number. YAML takes 1e-3 for text, so text that is a number counts."""
    try:
        return float(value) if not isinstance(value, bool) else float("nope")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {value!r} is not allowed; use a number") from None


def find_file(name: object, folder: Path, where: str) -> Path:
    """A file that an experiment names: in its own folder, or in the working directory."""
    require(isinstance(name, str), where, name, "the path of a config file")
    for path in (folder / str(name), Path(str(name))):
        if path.is_file():
            return path.resolve()
    raise ConfigError(f"{where}: there is no file {name}, neither in {folder} nor in the working directory")
