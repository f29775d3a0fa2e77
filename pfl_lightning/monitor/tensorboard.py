"""TensorBoard curves, written into the run directory itself, so that TensorBoard names runs by their directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.foundation.atomic_files import flush
from pfl_lightning.metrics.record import Metric, RoundRecord
from pfl_lightning.monitor.board import has_curve, layout, settings
from pfl_lightning.monitor.event_files import PATTERN, SUFFIX, GrowingFile
from pfl_lightning.monitor.snapshot import EventFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A kill loses at most the curves of these last seconds. metrics.csv has them.
_FLUSH_SECONDS = 10
_BINS = 20
_LARGEST = 1e150
"""Of values in histograms: TensorBoard adds up their squares."""


class TensorBoardWriter:
    """Curves, histograms over the clients, pictures of the partition and the config of one run."""

    def __init__(
        self, run_dir: Path, metrics: Sequence[Metric], resumed_at: int | None = None, earlier: Sequence[EventFile] = ()
    ) -> None:
        # takes a second to import: only runs pay for it, not `--help`
        from torch.utils.tensorboard import SummaryWriter

        self._metrics, self._earlier = metrics, earlier
        before = set(run_dir.glob(PATTERN))
        self._writer: Any = SummaryWriter(  # its types are incomplete
            str(run_dir),
            # an open TensorBoard drops its points of repeated rounds
            purge_step=None if resumed_at is None else resumed_at + 1 if resumed_at else 0,
            flush_secs=_FLUSH_SECONDS,
            filename_suffix=SUFFIX,
        )
        (path,) = set(run_dir.glob(PATTERN)) - before
        self._file = GrowingFile(path, (resumed_at or 0) + 1)

    def start(self, config_text: str, figures: Mapping[str, Figure]) -> None:
        """Write the config, the pictures, the layout and the settings, before the first round."""
        from torch.utils.tensorboard import summary as summaries

        hparams: Any = summaries.hparams  # it has no types
        # an indented block shows any text as it is, also one that holds a code fence
        self._writer.add_text("config", "".join(f"    {line}\n" for line in config_text.splitlines()), 0)
        for name, figure in figures.items():
            self._writer.add_figure(f"data/{name}", figure, 0)
        self._writer.add_custom_scalars(layout(self._metrics))
        for one in hparams(settings(config_text), {f"{self._metrics[0].label}_all/before": 0.0}):
            self._writer.file_writer.add_summary(one)
        self._writer.flush()

    def round(self, record: RoundRecord, samples: int) -> None:
        """Write the curves and histograms of one round."""
        curves = {name: value for name, value in record.scalars.items() if has_curve(name, self._metrics)}
        scalars = {tag(column, self._metrics): value for column, value in curves.items()}
        if record.scalars.get("seconds"):
            scalars["time/samples_per_second"] = samples / record.scalars["seconds"]
        self._add_scalars(scalars, record.round)
        for column, values in record.per_client.items():
            finite = values[np.isfinite(values)].astype(np.float64).clip(-_LARGEST, _LARGEST)
            if finite.size:
                group, name = tag(column, self._metrics).split("/", 1)
                edges = self._edges(column, finite)
                self._writer.add_histogram(f"{group}_spread/{name}", finite, record.round, edges)

    def flush(self) -> None:
        """Flush all rounds so far to disk."""
        self._writer.flush()
        flush(self._file.path)

    def files(self) -> list[EventFile]:
        """The run's files at this moment, in order. Call `flush` first."""
        return [*self._earlier, self._file.describe()]

    def close(self) -> None:
        """Write all pending values. A full disk was reported before."""
        with suppress(OSError):
            self._writer.close()

    def _add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """All curves in one event: with a hundred layers, one event each would hold up short rounds."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
        self._writer.file_writer.add_summary(Summary(value=values), step)

    def _edges(self, column: str, values: NDArray[Any]) -> NDArray[Any]:
        """Shares get the bins 0 ... 1 in every round, so that rounds can be compared."""
        if any(metric.percent and metric.split(column) for metric in self._metrics):
            return np.linspace(0.0, 1.0, _BINS + 1)
        return bin_edges(values)


def bin_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges of equal bins around finite values.

    The losses of diverging clients may be so large that there is no room for the bins between the smallest and the
    largest one. The range is widened then.
    """
    low, high = values.min(), values.max()
    room = _BINS * np.spacing(max(abs(low), abs(high)))
    if high - low < room:
        low, high = low - max(0.5, room), high + max(0.5, room)
    return np.linspace(low, high, _BINS + 1)


def tag(column: str, metrics: Sequence[Metric]) -> str:
    """A column of metrics.csv as `group/name`, because TensorBoard draws one card box per group."""
    for metric in metrics:
        if (parts := metric.split(column)) is not None:
            scope, name = parts
            return f"{metric.label}{'' if scope == 'participants' else f'_{scope}'}/{name}"
    every, column = column.startswith("all_"), column.removeprefix("all_")
    suffix = "_all" if every else ""
    if column.endswith("loss"):
        return f"loss{suffix}/{column.removesuffix('loss').rstrip('_') or 'mean'}"
    if column.startswith("train_"):
        return f"train/{column.removeprefix('train_')}"
    if column.endswith("bytes"):
        return f"traffic{suffix}/{column}"
    if column.endswith("seconds"):
        return f"time{suffix}/{column.removesuffix('seconds').rstrip('_') or 'round'}"
    if column.startswith("personal_"):
        return f"personal_share{suffix}/{'total' if column == 'personal_share' else column.removeprefix('personal_')}"
    return f"other{suffix}/{column}"
