"""From layers of settings to the full config of a run. The command line provides the parser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pfl_lightning.compare.experiment import FINE_TUNED, Column, Experiment, Keys, Method
from pfl_lightning.compare.layers import class_name, merge
from pfl_lightning.foundation.errors import ConfigError


class Resolver(Protocol):
    """The part of `pfl-fit`'s parser that a comparison needs."""

    def read(self, path: Path) -> dict[str, Any]:
        """A config file, on top of all files that it extends."""
        ...

    def resolve(self, config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
        """The full config of a run: all keys with their values, null included. Raises a `ConfigError`."""
        ...

    def is_algorithm(self, name: str) -> bool:
        """Whether the package has a method of this name."""
        ...

    def directions(self, config: Mapping[str, Any]) -> tuple[Mapping[str, str], bool]:
        """The metrics of a resolved config's task, the main one first, with `higher` or `lower`.

        And whether these are all: only a trial finds out what a LightningModule logs.
        """
        ...


def resolved(
    resolver: Resolver, experiment: Experiment, method: Method, column: Column, chosen: Keys
) -> dict[str, Any]:
    """The full config of a method in a column, without a seed. Later settings win:

    base, method, the experiment's `set`, the column, the method `at` the column, values that the search chose.
    """
    where = f"methods.{method.label}" + (f" at {column.label}" if column.label else "")
    base_path = column.base or experiment.base
    base = resolver.read(base_path) if base_path else {}
    own = merge([resolver.read(method.extends) if method.extends else {}, method.config])
    common = {**experiment.set, **column.keys}
    if method.control and not method.final:  # a control is another class, which may not know these
        common = {key: value for key, value in common.items() if not key.startswith("algorithm")}
    keys = {**method.keys, **common, **method.at.get(column.label, {}), **chosen, **method.final}
    if class_name(own, "algorithm") is None and "algorithm" not in keys:
        name = (method.root or method.label).removesuffix(FINE_TUNED)
        if resolver.is_algorithm(name) or class_name(base, "algorithm") is None:
            own = {**own, "algorithm": merge([{"algorithm": name}, _only(own, "algorithm")])["algorithm"]}
    try:
        config = resolver.resolve(merge([base, own]), keys)
        wants_copy = method.label.endswith(FINE_TUNED) and not config["loop"]["finetune_epochs"]
        if wants_copy:  # as many epochs as a visit has
            epochs = max(1, config["loop"]["local_epochs"])
            config = resolver.resolve(merge([base, own]), {**keys, "loop.finetune_epochs": epochs})
        _check_label(resolver, method.label, class_name(config, "algorithm"))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return with_partition_seed(config, experiment.partition_seed)


def _check_label(resolver: Resolver, label: str, algorithm: str | None) -> None:
    """Refuse a row that has the name of one method and the results of another."""
    name = label.removesuffix(FINE_TUNED)
    if name != algorithm and resolver.is_algorithm(name):
        raise ConfigError(f"its algorithm is {algorithm}; give the row another label, or leave out its algorithm")


def with_partition_seed(config: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """Fix the partition for all seeds, unless the config has fixed it or its data cannot."""
    settings = config.get("data", {}).get("init_args", {})
    if seed is None or "seed" not in settings or settings["seed"] is not None:
        return config
    return {**config, "data": {**config["data"], "init_args": {**settings, "seed": seed}}}


def _only(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: config[key]} if key in config else {}
