"""The one object that the loop tells about a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pfl_lightning.foundation.errors import RunError
from pfl_lightning.metrics.record import Metric, RoundRecord
from pfl_lightning.monitor.board import has_curve
from pfl_lightning.monitor.closing import closing_table, resume_command, tensorboard_command
from pfl_lightning.monitor.console import ConsoleProgress, say
from pfl_lightning.monitor.event_files import Rows, restore_events
from pfl_lightning.monitor.loggers import RunLoggers, write_identities
from pfl_lightning.monitor.snapshot import NO_FILES, Snapshot
from pfl_lightning.monitor.tables import MetricsTable, read_metrics, restore_metrics, write_summary
from pfl_lightning.monitor.tensorboard import TensorBoardWriter, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LOST_EVENTS = "its curves were written again from metrics.csv, without the histograms"


class Monitor:
    """Console, metrics.csv, TensorBoard, loggers and summary.json of one run. Nothing is written before `start`.

    Args:
        run_dir: Where the files go.
        columns: Columns of metrics.csv after `round`. A round may leave some out, but brings no others.
        total_rounds: Rounds of the whole run.
        console: Whether to print anything.
        metrics: The task's metrics by column name, the main one first, and whether `higher` or `lower` is better.
        loggers: Further loggers of the run.
    """

    def __init__(
        self,
        run_dir: Path,
        columns: Sequence[str],
        total_rounds: int,
        console: bool = True,
        metrics: Mapping[str, str] = MappingProxyType({"acc": "higher"}),
        loggers: RunLoggers | None = None,
    ) -> None:
        self.run_dir = run_dir
        self._columns = columns
        self._total = total_rounds
        self._metrics = [Metric.named(name, better) for name, better in metrics.items()]
        self._console = Console(quiet=not console)
        self._progress = ConsoleProgress(total_rounds, self._metrics[0], self._console)
        self._loggers = loggers or RunLoggers()
        self._table: MetricsTable | None = None
        self._tensorboard: TensorBoardWriter | None = None

    def start(
        self,
        header: Mapping[str, str],
        config_text: str,
        figures: Mapping[str, Figure],
        resumed_at: int | None = None,
        saved: Snapshot = NO_FILES,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[str]:
        """Open the files and print the header.

        Args:
            header: A few facts to print: algorithm, data, clients, parameters, ranks, run directory.
            config_text: The resolved config, for TensorBoard.
            figures: Name -> picture of the partition, for TensorBoard.
            resumed_at: The round from which the run continues. 0 to begin again in its directory. None for a new run.
            saved: The files at that round. Later rounds are dropped from the files, because they are trained again.
            settings: The config by full key, for loggers.

        Returns:
            Warnings about files that were damaged and have been restored.
        """
        self.run_dir.mkdir(parents=True, exist_ok=True)
        path, warnings, earlier = self.run_dir / "metrics.csv", [], saved.events
        with self._writing():
            if resumed_at is not None:
                if restore_metrics(path, self._columns, saved.rows):
                    warnings.append(f"{path} was damaged; its rows were restored from the checkpoint")
                earlier, damaged = restore_events(self.run_dir, saved.events, self._curves(_rows(path)))
                warnings += [f"{self.run_dir / name} was damaged; {LOST_EVENTS}" for name in damaged]
            self._table = MetricsTable(path, self._columns)
            self._tensorboard = TensorBoardWriter(self.run_dir, self._metrics, resumed_at, earlier)
            if not resumed_at:
                self._tensorboard.start(config_text, figures)
            self._loggers.start(settings, _rows(path) if resumed_at else None)
            write_identities(self.run_dir, self._loggers.loggers)
        self._progress.start(header)
        return warnings

    def round(self, record: RoundRecord, samples: int) -> None:
        """Keep and show one round, in which all ranks together trained on `samples` samples."""
        assert self._table is not None, "start comes first"
        assert self._tensorboard is not None, "start comes first"
        with self._writing():
            self._table.write(record)
            self._tensorboard.round(record, samples)
            self._loggers.round(record)
        self._progress.round(record, samples)

    def snapshot(self) -> Snapshot:
        """Flush all rounds so far to disk and describe the files, for a checkpoint."""
        assert self._table is not None, "start comes first"
        assert self._tensorboard is not None, "start comes first"
        with self._writing():
            self._table.flush()
            self._tensorboard.flush()
            self._loggers.save()
            return Snapshot(self._table.text, self._tensorboard.files())

    def finish(self, summary: Mapping[str, Any], ended_by: str = "") -> None:
        """Write summary.json, print the closing table and say where the run is.

        Args:
            summary: The results.
            ended_by: The callbacks that ended the run before its last round.
        """
        self.close("success")
        write_summary(self.run_dir / "summary.json", summary)
        rows = read_metrics(self.run_dir / "metrics.csv")
        self._console.print(closing_table(rows, summary["last"], self._metrics[0]))
        if ended_by:
            say(self._console, f"ended:   by {ended_by} after round {summary['rounds']} of {self._total}")
        self._say_where()

    def interrupted(self, round: int, saved: bool = False) -> None:
        """After a stop in `round`: close everything and name the kept rounds."""
        self.close()
        if self._table is not None:
            kept = len(read_metrics(self._table.path)["round"])
            say(self._console, f"Interrupted in round {round} of {self._total}: metrics.csv holds {kept} whole rounds.")
            if saved:
                say(self._console, f"resume:  {resume_command(self.run_dir)}")
            self._say_where()

    def close(self, status: str = "failed") -> None:
        """Close all files and give the terminal back. Closing twice is fine. Loggers get the status of the run."""
        self._progress.stop()
        if self._table is not None:
            self._table.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        self._loggers.close(status)

    def _curves(self, rows: Rows) -> Rows:
        """Rows with the names that curves have in TensorBoard."""
        metrics = self._metrics
        return [(n, {tag(c, metrics): v for c, v in row.items() if has_curve(c, metrics)}) for n, row in rows]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # TensorBoard's. The table names its own file
            raise RunError(f"cannot write to {self.run_dir}: {error.strerror or error}") from error

    def _say_where(self) -> None:
        say(self._console, f"run:     {self.run_dir}")
        say(self._console, f"curves:  {tensorboard_command(self.run_dir)}")


def _rows(path: Path) -> Rows:
    """The rounds in metrics.csv and their values, for files that must be written again."""
    table = read_metrics(path) if path.is_file() and path.stat().st_size else {"round": []}
    columns = {name: column for name, column in table.items() if name != "round"}
    return [
        (int(round_), {name: column[i] for name, column in columns.items() if not math.isnan(column[i])})
        for i, round_ in enumerate(table["round"])
    ]
