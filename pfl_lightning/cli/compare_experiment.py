"""The experiment that the options of `pfl-compare` describe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pfl_lightning.cli.extends import read
from pfl_lightning.compare.experiment import Experiment
from pfl_lightning.compare.experiment_file import experiment_from
from pfl_lightning.foundation.errors import ConfigError


def experiment_of(options: Any) -> Experiment:
    """The experiment in a file, or the one that `--methods` and `--config` describe."""
    if options.experiment:
        path = Path(options.experiment)
        content = read(path)
    else:
        path = Path(options.config)
        methods = {label.rpartition(".")[2]: _own_class(label) for label in options.methods}
        content = {"base": str(path.resolve()), "methods": methods, "seeds": options.seeds or [0]}
        content["report"] = {"metric": options.metric} if options.metric else {}
    content["set"] = {**(content.get("set") or {}), **dict(map(setting, options.set))}
    if options.no_controls:
        content["controls"] = []
    return experiment_from(content, path)


def setting(text: str) -> tuple[str, Any]:
    """`loop.rounds=20` as a key and a value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set: {text!r} is not allowed; use KEY=VALUE, such as loop.rounds=20")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        return key, value


def slug(name: str) -> str:
    """A name that is good for files and jobs."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "comparison"


def _own_class(label: str) -> dict[str, str] | None:
    """`my_module.MyMethod` names a class of the user."""
    return {"algorithm": label} if "." in label else None
