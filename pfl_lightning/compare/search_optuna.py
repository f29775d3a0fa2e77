"""Optuna as the engine of a search, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_lightning.compare.experiment import Keys
from pfl_lightning.foundation.errors import ConfigError


def propose_next(
    space: Mapping[str, Any], seed: int, higher: bool, trials: Sequence[tuple[Keys, float | None]]
) -> Keys:
    """The next values, as a function of the seed and the trials so far: the whole study is told again each time."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("search.engine: optuna is not installed; use random, grid, or pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {key: _distribution(values, optuna.distributions) for key, values in space.items()}
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize" if higher else "minimize", sampler=sampler)
    for _, value in trials:
        trial = study.ask(distributions)
        state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
        study.tell(trial, value, state=state)
    drawn = study.ask(distributions).params
    return {key: values[drawn[key]] if isinstance(values, list) else drawn[key] for key, values in space.items()}


def _distribution(values: Any, distributions: Any) -> Any:
    """Lists are chosen by position, since their values may be of any type."""
    if isinstance(values, list):
        return distributions.CategoricalDistribution(list(range(len(values))))
    return distributions.FloatDistribution(values["low"], values["high"], log=values["log"])
