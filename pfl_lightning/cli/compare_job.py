"""One call of `pfl-compare`, from its options to the table."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pfl_lightning.cli.compare_experiment import experiment_of, slug
from pfl_lightning.cli.compare_resolver import ParserResolver
from pfl_lightning.cli.run_lock import RunLock
from pfl_lightning.cli.world import usable_cores
from pfl_lightning.compare import children
from pfl_lightning.compare.cell_json import read_cells
from pfl_lightning.compare.comparison import Comparison, Stage
from pfl_lightning.compare.conclusion import Conclusion, conclude
from pfl_lightning.compare.display import make_display
from pfl_lightning.compare.listing import as_text, listing
from pfl_lightning.compare.output import check_page
from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.runner import Stopped
from pfl_lightning.compare.session import Session
from pfl_lightning.compare.trials import read_trials
from pfl_lightning.foundation.atomic_files import make_folder
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.shipped import find_config
from pfl_lightning.foundation.signals import StopSignals


class CompareJob:
    """Made from the options, then run once."""

    def __init__(self, options: Any, stop: StopSignals) -> None:
        self.options, self.stop = options, stop
        named = [Path(text) for text in (options.experiment, options.config) if text]
        beside = [str(find_config(path).resolve().parent) for path in named]
        self.python_path = [*beside, os.getcwd()]  # a user's own classes live there
        sys.path[:0] = self.python_path
        self.experiment = experiment_of(options)
        self.folder = Path(options.out or Path("runs/compare") / slug(self.experiment.name))
        self.page = Path(options.page) if options.page else None
        if self.page:
            check_page(self.page, self.experiment.name)
        cells = None if options.cells is None else Path(options.cells)
        published, trials = (read_cells(cells), read_trials(cells)) if cells else ({}, {})
        comparison = Comparison(self.experiment, ParserResolver(), trials)
        self.session = Session(comparison, self.folder, published)
        self.gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.slots = options.jobs or max(1, (self.gpus or usable_cores()) // options.ranks_per_cell)
        self.console = Console(stderr=True)

    def run(self) -> int:
        """Do as the options say. Returns the exit code."""
        if self.options.dry_run:
            return self.list_cells(self.session.refresh())
        if self.options.table_only:
            return self.show(conclude(self.session, self.session.refresh(), self.page))
        lock = self._claim()
        try:
            stage = self._submit() if self.options.slurm else self._run_here()
            return self.show(conclude(self.session, stage, self.page))
        except Stopped:
            self._say("stopped; the same command continues")
            return 128 + self.stop.seen[0]
        finally:
            lock.release()

    def list_cells(self, stage: Stage) -> int:
        """Print the cells and their cost."""
        rows = listing(stage, self.session.results, self.session.queued, self.session.timed(stage))
        if self.options.json:
            print(json.dumps(rows, indent=1))
        elif not self.options.quiet:
            print(as_text(rows, self.slots, bool(stage.searching)))
        return 0

    def show(self, conclusion: Conclusion) -> int:
        """The results on stdout, the rest on stderr. Returns the exit code."""
        for note in conclusion.notes:
            self._say(note)
        if self.options.json:
            print(json.dumps(conclusion.as_json(), indent=1))
        elif conclusion.files and not self.options.quiet:
            print(conclusion.files[0].read_text(), end="")
        if conclusion.files:
            self._say(f"tables: {', '.join(str(path) for path in conclusion.files)}")
        for problem in conclusion.problems:
            print(f"pfl-compare: error: {problem}", file=sys.stderr, flush=True)
        return 1 if conclusion.problems else 0

    def _run_here(self) -> Stage:
        timed = self.session.timed(self.session.refresh())
        display = make_display(self.console, self.options.quiet, self.slots, timed, os.environ)
        self.stop.armed = True
        try:
            return self.session.run(self._start, self.slots, self.stop, display)
        finally:
            display.close()

    def _submit(self) -> Stage:
        before = os.environ.get("PYTHONPATH")
        paths = [*self.python_path, *([before] if before else [])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        name, ranks = slug(self.experiment.name), self.options.ranks_per_cell
        return self.session.submit(self._write_config, name, ranks, self.options.slurm_options, env)

    def _start(self, cell: Cell, run_dir: Path, slot: int) -> children.Child:
        ranks = self.options.ranks_per_cell
        on_gpu = self.gpus > 0 and cell.config["fabric"]["accelerator"] != "cpu"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = children.gpus_of_slot(slot, ranks, self.gpus, visible) if on_gpu else None
        env = children.child_environment(os.environ, gpus, self.python_path)
        command = children.fit_command(self._write_config(cell), run_dir, ranks)
        make_folder(self.folder / "logs")
        return children.FitProcess(command, self.folder / "logs" / f"{run_dir.name}.log", env)

    def _write_config(self, cell: Cell) -> Path:
        return children.write_config(cell, self.folder / "configs")

    def _claim(self) -> RunLock:
        """One comparison at a time in a folder."""
        try:
            make_folder(self.folder)
            return RunLock(self.folder)
        except OSError as error:
            raise ConfigError(f"out: {self.folder} cannot be created: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(str(error).replace("run_dir:", "out:", 1)) from error

    def _say(self, text: str) -> None:
        if not self.options.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
