"""A comparison at work in its folder: look at the results, run the missing cells, look again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pfl_lightning.compare import slurm_array
from pfl_lightning.compare.children import Child
from pfl_lightning.compare.comparison import Comparison, Finished, Stage
from pfl_lightning.compare.display import Quiet
from pfl_lightning.compare.estimate import rounds_done, seconds_spent
from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.results import Results
from pfl_lightning.compare.run_folder import new_directory
from pfl_lightning.compare.runner import Runner
from pfl_lightning.foundation.signals import StopSignals


class Session:
    """The state of a comparison.

    Args:
        comparison: which cells are needed.
        folder: of the comparison. Run directories are in `runs` below it.
        published: see `Results`.
    """

    def __init__(self, comparison: Comparison, folder: Path, published: Finished | None = None) -> None:
        self.comparison, self.folder = comparison, folder
        self.results = Results(folder / "runs", published)
        self.failed: dict[str, str] = {}
        """Identity → problem of cells that failed in this session."""
        self.queued: dict[str, str] = {}
        """Identity → SLURM task of cells that wait or run there."""

    def refresh(self) -> Stage:
        """Look at the results. The trials of a search may lead to more cells, whose results may be there as well."""
        queued = slurm_array.queued(self.folder / "slurm")  # asked first: a task may end while we look
        seen: set[str] = set()
        while not (stage := self.comparison.stage(self.results.finished, self.failed)).cells.keys() <= seen:
            seen |= stage.cells.keys()
            self.results.refresh(stage.cells.values())
        self.queued = {cell: task for cell, task in queued.items() if cell not in self.results.finished}
        return stage

    def missing(self, stage: Stage) -> list[tuple[Cell, Path | None]]:
        """Cells that have to run now, with the directory in which a run can be continued."""
        done = {*self.results.finished, *self.failed, *self.queued}
        return [(cell, self.results.unfinished.get(id_)) for id_, cell in stage.cells.items() if id_ not in done]

    def run(self, start: Callable[[Cell, Path, int], Child], slots: int, stop: StopSignals, display: Quiet) -> Stage:
        """Run every missing cell on this machine, stage after stage. Raises `Stopped`."""
        stage = self.refresh()
        while work := self.missing(stage):
            display.expect([cell for cell, _ in work])
            self.failed |= Runner(start, slots, self.results.folder, stop, display).run(work)
            stage = self.refresh()
            for cell, _ in work:
                if cell.id not in self.results.finished:
                    self.failed.setdefault(cell.id, "its results cannot be used; run this again")
            stage = self.comparison.stage(self.results.finished, self.failed)
        return stage

    def submit(self, write: Callable[[Cell], Path], name: str, ranks: int, options: str, env: dict[str, str]) -> Stage:
        """Submit every missing cell to SLURM."""
        stage = self.refresh()
        folder = self.results.folder
        tasks = [(cell, write(cell), path or new_directory(cell, folder)) for cell, path in self.missing(stage)]
        if tasks:
            slurm_array.submit(tasks, self.folder / "slurm", name, ranks, options, env)
            self.queued = slurm_array.queued(self.folder / "slurm")
        return stage

    def timed(self, stage: Stage) -> list[tuple[Cell, int, float]]:
        """Measured speeds of runs: cell, rounds, seconds."""
        paths = {**{key: path for key, (path, _) in self.results.finished.items()}, **self.results.unfinished}
        found = [
            (cell, paths[cell.id]) for cell in stage.cells.values() if cell.id in paths and paths[cell.id].is_dir()
        ]
        return [(cell, rounds_done(path), seconds_spent(path)) for cell, path in found]
