"""A child that does as if it trained: every poll is a step of its run."""

from __future__ import annotations

from pathlib import Path

from pfl_lightning.checkpoint.manifest import list_rounds
from pfl_lightning.compare.plan import Cell
from tests.helpers.comparisons import write_run


class FakeFit:
    """Saves a checkpoint after every second round, and when it is interrupted.

    Args:
        cell: whose run it is.
        run_dir: where it starts or continues.
        clients: whether it writes clients.csv.
        fails: exit code at the first round; 0: it does not fail.
    """

    def __init__(self, cell: Cell, run_dir: Path, clients: bool = True, fails: int = 0) -> None:
        self.cell, self.run_dir, self._clients, self._fails = cell, run_dir, clients, fails
        saved = list_rounds(run_dir / "checkpoints") if (run_dir / "checkpoints").is_dir() else []
        self.rounds = max(saved, default=-1)
        self._code: int | None = None
        self.interrupted = self.killed = False

    def poll(self) -> int | None:
        if self._code is None:
            self.rounds += 1
            saves = self.rounds % 2 == 0 or self.rounds == self.cell.rounds
            if self._fails and self.rounds:
                self._code = self._fails
            elif self.rounds > self.cell.rounds:
                self._code = 0
            else:
                write_run(self.run_dir, self.cell, self.rounds, checkpoint=saves, clients=self._clients)
        return self._code

    def interrupt(self) -> None:
        self.interrupted = True
        if self._code is None:
            if self.rounds > 0:
                write_run(self.run_dir, self.cell, self.rounds, clients=self._clients)
            self._code = 130

    def crash(self) -> None:
        """End without a trace, whatever is asked afterwards."""
        self._code = -9 if self._code is None else self._code

    def kill(self) -> None:
        self.killed = True
        self.crash()

    def complaint(self) -> str:
        return "it cannot go on"
