"""Lightning's loggers: every round goes to each of them, and a resumed run continues the same logged runs."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_lightning.foundation.atomic_files import write_text
from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.metrics.record import RoundRecord

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

FILE = "loggers.json"
Rows = Sequence[tuple[int, Mapping[str, float]]]
"""For each round its number and its values by column."""


class RunLoggers:
    """The loggers of one run, on rank 0. Metrics have the names of the columns of metrics.csv, steps are rounds.

    Args:
        loggers: of Lightning, not started yet.
    """

    def __init__(self, loggers: Sequence[Logger] = ()) -> None:
        self.loggers = list(loggers)
        self._started = False

    def start(self, settings: Mapping[str, Any], earlier: Rows | None = None) -> None:
        """Open the logged runs.

        Args:
            settings: the config, by full key. A new run logs it.
            earlier: the rounds before the present one, if the run is continued.
        """
        for logger in self.loggers:
            with _naming(logger, ConfigError), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Experiment logs directory")
                _ = logger.experiment  # type: ignore[attr-defined]
                if earlier is None:
                    logger.log_hyperparams(dict(settings))
                elif _is_a("CSVLogger", logger):  # it begins its file again
                    for round_, values in earlier:
                        logger.log_metrics(dict(values), round_)
        self._started = True

    def round(self, record: RoundRecord) -> None:
        """Log the values of a round."""
        values = {name: value for name, value in record.scalars.items() if name != "round" and not math.isnan(value)}
        self._each(lambda logger: logger.log_metrics(values, record.round))

    def save(self) -> None:
        """Write pending values, for a checkpoint."""
        self._each(lambda logger: logger.save())

    def close(self, status: str) -> None:
        """Close the logged runs. Closing twice is fine.

        Args:
            status: `success`, or `failed` for an unfinished run.
        """
        if self._started:
            self._started = False
            self._each(lambda logger: _finalize(logger, status))

    def _each(self, call: Callable[[Logger], object]) -> None:
        for logger in self.loggers:
            with _naming(logger, RunError):
                call(logger)


def _finalize(logger: Logger, status: str) -> None:
    logger.finalize(status)
    if _is_a("WandbLogger", logger):  # otherwise W&B writes at Python's exit, which a forked rank never reaches
        logger.experiment.finish(int(status != "success"))  # type: ignore[attr-defined]


def _is_a(name: str, logger: Logger) -> bool:
    """Whether a logger is of this class of Lightning, which takes long to import."""
    from lightning.pytorch import loggers

    return isinstance(logger, getattr(loggers, name))


def write_identities(run_dir: Path, loggers: Sequence[Logger]) -> None:
    """Write down which logged runs belong to this run. Raises an `OSError`."""
    found = [[_class_of(logger), logger.version] for logger in loggers]
    if found:
        write_text(run_dir / FILE, json.dumps(found) + "\n")


def read_identities(run_dir: Path) -> list[tuple[str, str | int]]:
    """The class and the version of each logged run. Empty if there are none or the file is damaged."""
    try:
        content = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
        return [(str(kind), version) for kind, version in content if isinstance(version, str | int)]
    except (OSError, ValueError, TypeError):
        return []


def _class_of(logger: Logger) -> str:
    return type(logger).__name__


@contextmanager
def _naming(logger: Logger, kind: type[Exception]) -> Iterator[None]:
    """Name the logger in errors, which come from code of others."""
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split()) or "no reason given"
        raise kind(f"loggers: {_class_of(logger)} failed: {type(error).__name__}: {reason}") from error
