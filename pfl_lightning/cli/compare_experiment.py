"""The experiment that the options of `pfl-compare` describe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pfl_lightning.cli.extends import config_files
from pfl_lightning.compare.experiment import Experiment
from pfl_lightning.compare.experiment_file import experiment_from
from pfl_lightning.compare.file_layers import layered, with_variant
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.shipped import find_config


def experiment_of(options: Any) -> Experiment:
    """The experiment in a file, or the one that `--methods` and `--config` describe."""
    if options.experiment:
        path = find_config(Path(options.experiment))
        content = with_variant(layered(config_files(path)), options.variant, path.stem)
    else:
        path = find_config(Path(options.config))
        methods = {label.rpartition(".")[2]: _own_class(label) for label in options.methods}
        content = {"base": str(path.resolve()), "methods": methods, "seeds": options.seeds or [0]}
        content["report"] = {"metric": options.metric} if options.metric else {}
    content["set"] = {**(content.get("set") or {}), **dict(map(setting, options.set))}
    parts = [f"only the {key} {'; '.join(chosen)}" for key in ("rows", "columns") if (chosen := getattr(options, key))]
    if changes := [*options.set, *parts]:  # a table must not pass for one of the file as it is
        content["caption"] = f"Changed on the command line: {', '.join(changes)}. {content.get('caption') or ''}"
    if options.no_controls:
        content["controls"] = []
    content |= {key: getattr(options, key) for key in ("rows", "columns") if getattr(options, key)}
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
    """A name usable for files and jobs."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "comparison"


def _own_class(label: str) -> dict[str, str] | None:
    """`my_module.MyMethod` names a class of the user."""
    return {"algorithm": label} if "." in label else None
