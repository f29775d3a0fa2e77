"""Consent to run the code that a run directory names.

A config names classes, and reading it imports them. A config on the user's own command line is the user's choice. The
config inside a run directory may come from somebody else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from pfl_lightning.cli.classes import accepted_classes
from pfl_lightning.foundation.errors import ConfigError

KNOWN = (
    "pfl_lightning", "torch.optim", "torch.nn", "torchmetrics", "torchvision.models", "torchvision.ops",
    "torchvision.transforms", "lightning.pytorch.loggers",
)  # fmt: skip
"""Packages whose classes need no consent. They read no pickle, which timm's checkpoints and some of torchvision's data
sets are: a config could name a file in the run directory."""
FREE = ("torchvision.transforms",)
"""Packages that are known and whose classes have no common base."""
BUILDERS = ("torchvision.models",)
"""Packages that are known and whose functions need no consent either."""
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def require_trust(config: dict[str, Any], run_dir: Path, argv: list[str]) -> None:
    """Refuse a config from a run directory that names classes from elsewhere, unless the user says `--trust`."""
    names = list(dict.fromkeys(outside_names(config)))
    if names and not is_trusted(argv):
        is_ours = all(name.startswith("pfl_lightning.") for name in names)
        why = ", which no setting should name" if is_ours else " from outside pfl_lightning"
        raise ConfigError(
            f"resume: the run in {run_dir} uses {', '.join(names)}{why}; to run this code, "
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
    """Whether a name is a class that a known package defines itself and that a config is meant to name.

    A setting takes any function or class at all, as a net for example, and calls it with values from the config. Some
    functions of known packages write files or run commands: `write_text` of this package, or `pfl-fit --trust` itself.
    """
    module, _, attribute = name.rpartition(".")
    if not _is_in(KNOWN, module):
        return False
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        return False
    defined_in = getattr(found, "__module__", None)
    if not isinstance(defined_in, str) or not _is_in(KNOWN, defined_in):
        return False
    if inspect.isclass(found):
        return issubclass(found, accepted_classes()) or _is_in(FREE, defined_in)
    return inspect.isfunction(found) and _is_in(BUILDERS, defined_in)


def _is_in(packages: tuple[str, ...], module: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
