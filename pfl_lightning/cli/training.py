"""The training of one rank and the files that it leaves."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from lightning.fabric import Fabric
from typing_extensions import override

from pfl_lightning.callback import Callback
from pfl_lightning.checkpoint import Checkpoints, resume
from pfl_lightning.checkpoint.differences import flatten
from pfl_lightning.checkpoint.marker import Marker
from pfl_lightning.cli.checks import check_net, check_optimizer
from pfl_lightning.cli.origin import origin
from pfl_lightning.cli.own_digests import own_digests
from pfl_lightning.cli.resumed_run import AUTO
from pfl_lightning.cli.run_dir import check_shared, content
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.data import save_partition
from pfl_lightning.foundation import slurm
from pfl_lightning.foundation.atomic_files import write_text
from pfl_lightning.foundation.errors import ConfigError, RunError, StopRound
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.monitor import Monitor
from pfl_lightning.monitor.console import EVALUATED
from pfl_lightning.monitor.loggers import RunLoggers, read_identities
from pfl_lightning.monitor.snapshot import NO_FILES, Snapshot
from pfl_lightning.report.partition import draw_partition
from pfl_lightning.report.recorders import recorders
from pfl_lightning.tasks.task import Task

if TYPE_CHECKING:
    from pfl_lightning.cli.job import Job

UNLOGGED = ("callbacks", "loggers", "run_dir", "resume", "trust")
"""Keys of the config other than settings of the training."""


class Training:
    """Builds the loop, takes the run directory, trains, and writes the results. One object per rank.

    Args:
        job: the settings, the parts and the run directory.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._monitor: Monitor | None = None
        self._unused_dir: Path | None = None
        """The run directory, on rank 0 and as long as it holds no result. None if it held files before."""
        self.has_result = False
        """Whether a round was finished, now or before a resume."""

    def run(self, fabric: Fabric) -> int:
        """Train, and return the exit code."""
        job, loop = self.job, self._make_loop(fabric)
        loop.comm.run_on_rank_zero(job.loggers.check)  # not before: databases must not be open when ranks are forked
        # rank 0 knows the name, which may contain the time of day
        job.directory.path = loop.comm.run_on_rank_zero(self._claim)
        check_shared(job.run_dir, loop.comm)
        recording = recorders(job.report, loop, job.run_dir)
        loop.store.set_folder(job.run_dir)
        following = [*recording, *job.callbacks]
        checkpoints = Checkpoints(
            job.run_dir, loop, job.checkpoint, job.config_text, results=self._results, callbacks=following
        )
        begun = resume(checkpoints, fallback=job.resume == AUTO) if job.resume else None
        if begun:
            self.keep()
            if begun > job.loop.rounds:
                raise ConfigError(
                    f"loop.rounds: {job.loop.rounds} is not allowed; the run has done {begun} rounds already"
                )
        loop.comm.run_on_rank_zero(lambda: self._open_files(loop, checkpoints, begun))
        try:
            # checkpoints come last, so that they hold the others' records of the round
            summary = loop.fit([_ShowRound(self, loop.comm), *following, checkpoints])
        except StopRound:
            self.keep()
            return self._stopped(loop, checkpoints, begun or 0)
        try:
            checkpoints.finish()
        finally:
            loop.comm.run_on_rank_zero(lambda: self._finish(summary))
        return 0

    def keep(self) -> None:
        """From now on the run directory holds a result and stays, even if the run fails."""
        self._unused_dir, self.has_result = None, True

    def close(self, failed: bool) -> None:
        """Close all files. The directory of a run that failed before it had a result is removed."""
        if self._monitor:
            self._monitor.close()
        if failed and self._unused_dir:
            _empty(self._unused_dir)
        self.job.directory.release()

    def write_traceback(self, error: Exception) -> str:
        """Keep the traceback of an unexpected error in a directory that stays. Returns where it is, in words."""
        path = self.job.run_dir / "error.txt"
        if not self.has_result:
            return ""
        try:
            with open(path, "a", encoding="utf-8", opener=_open_no_link) as file:
                traceback.print_exception(error.__cause__ or error, file=file)
        except OSError:
            return ""
        return f"the traceback is in {path}"

    def _make_loop(self, fabric: Fabric) -> FederatedFabricLoop:
        """Build the model, and check whatever can be checked before anything is written."""
        job = self.job
        try:
            loop = FederatedFabricLoop(
                fabric, job.task, job.algorithm, job.data, job.loop, job.seed, stop=job.stop, store=job.store
            )
        except AttributeError:
            if isinstance(job.task, Task):
                check_net(job.task)  # most likely the cause
            raise
        if isinstance(job.task, Task):
            check_net(job.task)
            check_optimizer(job.task)
        for callback in job.callbacks:
            callback.check(loop.history.columns())
        if loop.comm.rank == 0:
            for warning in job.data.warnings:
                print(f"pfl-fit: warning: {warning}", file=sys.stderr, flush=True)
        return loop

    def _claim(self) -> Path:
        """Lock the run directory on rank 0. Everything that can be refused has been checked by now."""
        path = self.job.directory.claim()
        self._unused_dir = None if content(path) else path
        return path

    def _open_files(self, loop: FederatedFabricLoop, checkpoints: Checkpoints, begun: int | None) -> None:
        """Write the first files of the run, or restore them."""
        job = self.job
        try:
            job.directory.remove_leftovers()
            sources = own_digests(job.config_text, job.run_dir if begun else None)
            Marker(job.config_text, bool(begun), tuple(job.code), sources).write(job.run_dir)
            write_text(job.run_dir / "config.yaml", job.config_text)
            save_partition(job.data, job.run_dir / "partition.safetensors")
        except OSError as error:
            raise RunError(f"cannot write to {job.run_dir}: {error.strerror or error}") from error
        header = {
            "algorithm": type(job.algorithm).__name__,
            "data": f"{job.data.name}, {job.data.num_clients} clients, {job.cohort_size} in a round",
            "model": f"{type(loop.task.net).__name__}, {loop.server.layout.num_parameters:,} parameters"
            + (f", head {loop.task.shown_head}" if loop.task.shown_head else ""),
            "ranks": f"{loop.comm.world} on {loop.engine.client.vector.device.type}",
            "run": str(job.run_dir) + (f", continued after round {begun}" if begun else ""),
        } | {f"dropped {dropped.key}": str(dropped) for dropped in job.dropped}
        header |= {EVALUATED: sample} if (sample := loop.history.sample) else {}
        loggers = RunLoggers(job.loggers.make(job.run_dir, begun, read_identities(job.run_dir)))
        monitor = Monitor(
            job.run_dir, loop.history.columns(), job.loop.rounds, not job.quiet, loop.task.better, loggers
        )
        self._monitor = monitor
        figures = {} if begun else {"partition": draw_partition(job.data.label_counts())}
        settings = flatten(
            {key: value for key, value in yaml.safe_load(job.config_text).items() if key not in UNLOGGED}
        )
        saved = checkpoints.loaded_results
        for warning in monitor.start(header, job.config_text, figures, begun, saved, settings):
            checkpoints.warn(warning)

    def show(self, record: RoundRecord) -> None:
        """Write and print a round. Called on rank 0."""
        if self._monitor:
            self._monitor.round(record, int(record.scalars["samples"]))

    def _results(self) -> Snapshot:
        return self._monitor.snapshot() if self._monitor else NO_FILES

    def _finish(self, summary: Mapping[str, Any]) -> None:
        if self._monitor:
            by = [type(callback).__name__ for callback in self.job.callbacks if callback.should_stop]
            self._monitor.finish({**summary, **origin(), "command": self.job.command}, ended_by=", ".join(by))

    def _stopped(self, loop: FederatedFabricLoop, checkpoints: Checkpoints, begun: int) -> int:
        """After an abandoned round: save the last whole one, say so, and ask SLURM to requeue the job if needed."""
        stop = self.job.stop
        numbers = [number for seen in loop.comm.gather(list(stop.seen)) for number in seen]
        checkpoints.finish()
        loop.comm.run_on_rank_zero(lambda: self._say_stopped(loop.server.round + 1, checkpoints.enabled))
        count = len(stop.seen)
        # without checkpoints, a requeued job would begin again and never get further
        if checkpoints.enabled and loop.comm.run_on_rank_zero(
            lambda: slurm.requeue(numbers, loop.server.round - begun)
        ):
            # scontrol will kill this process. Exiting by ourselves would mark the job completed and drop the requeue
            stop.wait(slurm.PATIENCE_SECONDS, more_than=count)
            return 0
        return 128 + numbers[0]

    def _say_stopped(self, round_: int, saved: bool) -> None:
        if self._monitor:
            self._monitor.interrupted(round_, saved)


def _open_no_link(path: str, flags: int) -> int:
    """Open a file, but not through a link, which may lead out of somebody else's directory."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _empty(folder: Path) -> None:
    """Remove all files of a run. The run still holds the lock of the directory, so nobody else uses it."""
    with suppress(OSError):
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


class _ShowRound(Callback):
    """Notes that there is a result, and shows the round on rank 0. An error there ends all ranks."""

    def __init__(self, training: Training, comm: Comm) -> None:
        self._training, self._comm = training, comm

    @override
    def on_round_end(self, record: RoundRecord) -> None:
        self._training.keep()
        self._comm.run_on_rank_zero(partial(self._training.show, record))
