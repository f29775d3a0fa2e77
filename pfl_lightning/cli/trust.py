"""Consent to run the code that a run directory names.

A config names classes, and reading it imports them. A config on the user's own command line is the user's choice. The
config inside a run directory may come from somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from pfl_lightning.foundation.errors import ConfigError

KNOWN = (
    "pfl_lightning", "torch.optim", "torch.nn", "torchmetrics", "torchvision.models", "torchvision.ops",
    "torchvision.transforms", "lightning.pytorch.loggers",
)  # fmt: skip
"""Packages whose classes need no consent. They read no pickle, which timm's checkpoints and some of torchvision's data
sets are: a config could name a file in the run directory."""
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def require_trust(config: dict[str, Any], run_dir: Path, argv: list[str]) -> None:
    """Refuse a config from a run directory that names classes from elsewhere, unless the user says `--trust`."""
    names = list(dict.fromkeys(outside_names(config)))
    if names and not is_trusted(argv):
        raise ConfigError(
            f"resume: the run in {run_dir} uses {', '.join(names)} from outside pfl_lightning; to run this code, "
            "check that you trust the directory and add --trust"
        )


def is_trusted(argv: list[str]) -> bool:
    """Whether the command line says `--trust`. It is needed before the parser can read the rest."""
    return "--trust" in argv


def outside_names(value: Any) -> Iterator[str]:
    """The names in a config that the parser could import, except classes of a known package."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "class_path" and isinstance(item, str):
                if "." in item and not _is_known(item):
                    yield item
            else:
                yield from outside_names(item)
    elif isinstance(value, list):
        for item in value:
            yield from outside_names(item)
    elif isinstance(value, str):
        yield from _in_text(value)


def _in_text(text: str) -> Iterator[str]:
    """The parser also imports `net: module.Class`, and reads YAML inside of text."""
    if IMPORT_PATH.fullmatch(text):
        if _can_be_imported(text.partition(".")[0]) and not _is_known(text):
            yield text
        return
    try:
        inner = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    if inner != text:  # also a name in quotes or between spaces
        yield from outside_names(inner)


def _can_be_imported(module: str) -> bool:
    """Whether there is a top-level module of this name. It is not imported."""
    try:
        return find_spec(module) is not None
    except ValueError:  # `__main__` and modules that were made by hand
        return True


def _is_known(name: str) -> bool:
    """Whether a name is a class or function that a known package defines itself."""
    module, _, attribute = name.rpartition(".")
    if not _is_in_known_package(module):
        return False
    try:
        defined_in = getattr(getattr(import_module(module), attribute), "__module__", None)
    except (ImportError, AttributeError):
        return False
    return isinstance(defined_in, str) and _is_in_known_package(defined_in)


def _is_in_known_package(module: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in KNOWN)
