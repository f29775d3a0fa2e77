"""One run of `pfl-fit`, from the command line to the exit code of each rank."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

import torch
from jsonargparse import ArgumentParser
from lightning.fabric import Fabric

from pfl_lightning.callback import Callback
from pfl_lightning.checkpoint.manifest import list_rounds
from pfl_lightning.cli.boundary import INTERRUPTED, complain, foreseen, let_rank_zero_report
from pfl_lightning.cli.explain import full_key
from pfl_lightning.cli.extends import config_name
from pfl_lightning.cli.loggers import LoggerPlan
from pfl_lightning.cli.own_code import own_folders
from pfl_lightning.cli.parser import CLASSES, GROUPS, build_parser, complete, instantiate, read_command
from pfl_lightning.cli.resumed_run import check_resumable, needs_trust, require_name, resumed_run_dir, stored_folders
from pfl_lightning.cli.run_dir import RunDirectory
from pfl_lightning.cli.status import Status
from pfl_lightning.cli.training import Training
from pfl_lightning.engine.cohort import cohort_size
from pfl_lightning.foundation.errors import (
    AlgorithmError,
    ConfigError,
    LostRankError,
    RunError,
    UnexpectedError,
    require,
)
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.foundation.signals import StopSignals
from pfl_lightning.monitor.closing import resume_command
from pfl_lightning.tasks.lightning_task import as_task


class Job:
    """A run of the command. Made once, then called on every rank.

    Args:
        argv: the words of the command line.
        stop: says whether the process was asked to stop.
        status: shows the present step of the preparation.
        show_traceback: whether to print tracebacks of errors.
    """

    def __init__(
        self, argv: list[str], stop: StopSignals, status: Status | None = None, show_traceback: bool = False
    ) -> None:
        status = status or Status()
        status.say("reading the config")
        parser = build_parser()
        self.stop, self.show_traceback = stop, show_traceback
        self.quiet = False
        self.command = shlex.join(["pfl-fit", *argv])
        self.config, self.dropped, replaced = read_command(parser, argv)
        self.code = [*own_folders(argv, needs_trust(argv)), *stored_folders(argv)]
        self.seed = self.config.seed
        require(self.seed >= 0, "seed", self.seed, "0 or more")
        self.resume: str | None = self.config.resume
        for key in ("resume", "run_dir"):
            require_name(key, self.config[key])
        resolved = self.config.clone()
        resolved.resume, resolved.trust = None, False  # they belong to the command, not to the run
        self.config_text: str = parser.dump(resolved)
        torch.manual_seed(derive_seed(self.seed, "task"))  # for a task that makes layers in its __init__
        parts = instantiate(parser, self.config)
        parts["task"] = as_task(parts["task"])
        self.algorithm, self.task, self.data = (parts[key] for key in CLASSES)
        self.loop, self.fabric, self.checkpoint, self.store, self.report = (parts[key] for key in GROUPS)
        self.callbacks: list[Callback] = parts["callbacks"]
        self.loggers = LoggerPlan(parser, self.config.loggers)
        config = None if replaced & CLASSES.keys() else config_name(argv)
        self.directory = self._choose_directory(config or type(self.algorithm).__name__.lower(), parser)
        status.say("preparing the data")
        try:
            self.data.setup(self.seed)
        except ConfigError as error:
            raise ConfigError(full_key(str(error), "data", self.config.data)) from error
        except SystemExit as error:
            raise foreseen(error) from error
        clients, together = self.data.num_clients, self.loop.clients_per_step
        require(together <= clients, "loop.clients_per_step", together, f"at most {clients}, the number of clients")
        self.cohort_size = cohort_size(clients, self.loop.participation)

    @property
    def run_dir(self) -> Path:
        """The directory of the run. By default it gets its name when the run is launched."""
        return self.directory.path

    def _choose_directory(self, name: str, parser: ArgumentParser) -> RunDirectory:
        if not self.resume:
            return RunDirectory(Path(self.config.run_dir) if self.config.run_dir is not None else None, name)
        path = resumed_run_dir(self.config)
        return RunDirectory(path, name, lambda: check_resumable(path, self.config_text, partial(complete, parser)))

    def __call__(self, fabric: Fabric) -> None:
        """Train on this rank. Exit with a code if that fails or is stopped."""
        code, training = INTERRUPTED, Training(self)
        try:
            code = training.run(fabric)
        except KeyboardInterrupt:
            pass
        except (Exception, SystemExit) as error:  # no code of ours exits from within a run
            code = self._report(foreseen(error), training, fabric.is_global_zero)
        finally:
            training.close(failed=code != 0)
        if code:
            sys.exit(code)

    def advise(self, error: RunError) -> None:
        """Add to an error how to continue the run, if it has a checkpoint."""
        if list_rounds(self.run_dir / "checkpoints"):
            error.args = (f"{error}; {resume_command(self.run_dir)} continues from the last checkpoint",)

    def _report(self, error: ConfigError | RunError, training: Training, is_first: bool) -> int:
        """Print an error on one rank only, and return the exit code."""
        unexpected = isinstance(error, UnexpectedError)
        own_mistake = isinstance(error, (UnexpectedError, AlgorithmError))  # other ranks may report it too
        if isinstance(error, RunError) and not (own_mistake or isinstance(error, LostRankError)):
            training.keep()
        quiet = error.quiet if isinstance(error, LostRankError) else error.collective and not is_first
        if (quiet and error.collective) or (own_mistake and not is_first):
            let_rank_zero_report()
        if quiet:
            return error.exit_code
        if isinstance(error, RunError) and training.has_result:
            self.advise(error)
        hint = training.write_traceback(error) if unexpected else ""
        return complain("pfl-fit", error, self.show_traceback, hint)
