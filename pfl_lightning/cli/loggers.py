"""The loggers of a config, made when the run directory is known."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from pfl_lightning.cli.classes import find_class
from pfl_lightning.cli.failure import describe
from pfl_lightning.cli.listed import RUN_DIR
from pfl_lightning.foundation.errors import ConfigError

VERSION_NAMES = ("version", "run_id", "experiment_key")
"""Parameters by which loggers take the identity of a run that they continue."""


class LoggerPlan:
    """Makes the loggers that a config lists.

    Args:
        parser: of the command.
        entries: the classes and their settings.
    """

    def __init__(self, parser: ArgumentParser, entries: Sequence[Namespace]) -> None:
        self._parser, self._entries = parser, entries

    def check(self) -> None:
        """Make the loggers once, so that a missing package or a wrong setting is found before anything is written."""
        if self._entries:
            with TemporaryDirectory() as folder:
                self.make(Path(folder))

    def make(
        self, run_dir: Path, resumed_at: int | None = None, identities: Sequence[tuple[str, str | int]] = ()
    ) -> list[Logger]:
        """The loggers.

        Args:
            run_dir: their files go there, unless the config says otherwise.
            resumed_at: the round from which the run continues.
            identities: class and version of each logged run to continue.
        """
        left, made = list(identities), []
        for entry in self._entries:
            kind = find_class("loggers", entry.class_path)
            settings = {name: _placed(value, run_dir) for name, value in vars(entry.init_args).items()}
            extra = dict(entry.get("dict_kwargs") or {})
            known = next((pair for pair in left if pair[0] == kind.__name__), None)
            if known is not None:
                left.remove(known)
                settings |= _continued(kind, settings, known[1])
            if resumed_at is not None and issubclass(kind, TensorBoardLogger):
                extra["purge_step"] = resumed_at + 1  # these rounds are trained again
            made.append(self._instantiate(entry.class_path, settings, extra))
        return made

    def _instantiate(self, path: str, settings: dict[str, Any], extra: dict[str, Any]) -> Logger:
        entry = Namespace(class_path=path, init_args=Namespace(**settings))  # type: ignore[no-untyped-call]
        if extra:
            entry.dict_kwargs = extra
        try:
            made = self._parser.instantiate(Namespace(loggers=[entry]))  # type: ignore[no-untyped-call]
        except (Exception, SystemExit) as error:
            reason = str(error) if isinstance(error, ImportError) else describe(error)
            name = path.rpartition(".")[2]
            raise ConfigError(f"loggers: {name} cannot be made: {' '.join(reason.split())}") from error
        logger: Logger = made.loggers[0]
        return logger


def _placed(value: Any, run_dir: Path) -> Any:
    return value.replace(RUN_DIR, str(run_dir)) if isinstance(value, str) else value


def _continued(kind: type, settings: dict[str, Any], version: str | int) -> dict[str, Any]:
    """The setting that makes a logger continue a logged run, unless the config names one."""
    parameters = inspect.signature(kind).parameters
    name = next((name for name in VERSION_NAMES if name in parameters), None)
    return {name: version} if name and settings.get(name) is None else {}
