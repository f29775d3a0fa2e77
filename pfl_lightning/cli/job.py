"""One training run, from the parsed config to the files it leaves."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.fabric import Fabric
from safetensors import SafetensorError

from pfl_lightning import slurm
from pfl_lightning.atomic import replacing, write_text
from pfl_lightning.checkpoint import Checkpoints, resume
from pfl_lightning.checkpoint.manifest import list_rounds
from pfl_lightning.cli.explain import full_key
from pfl_lightning.cli.extends import config_name
from pfl_lightning.cli.launch import INTERRUPTED
from pfl_lightning.cli.lock import RunLock
from pfl_lightning.cli.origin import origin
from pfl_lightning.cli.parser import CLASSES, GROUPS, build_parser, complete, instantiate, parse
from pfl_lightning.cli.resume import AUTO, resumed_run_dir
from pfl_lightning.cli.run_dir import check_free, check_shared, choose_run_dir, create
from pfl_lightning.cohort import cohort_size
from pfl_lightning.data import save_partition
from pfl_lightning.errors import ConfigError, LostRankError, RunError, StopRound
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.monitor import Monitor
from pfl_lightning.monitor.closing import resume_command
from pfl_lightning.report.partition import draw_partition
from pfl_lightning.report.recorders import recorders
from pfl_lightning.signals import StopSignals

SPEAKING_SECONDS = 5.0


class Job:
    """A run of the command. Made once, then called on every rank."""

    def __init__(self, argv: list[str], stop: StopSignals) -> None:
        parser = build_parser()
        self.stop = stop
        self.command = shlex.join(["pfl-fit", *argv])
        self.config: Namespace = parse(parser, argv)
        self.resume: str | None = self.config.resume
        without_resume = self.config.clone()
        without_resume.resume = None
        self.config_text: str = parser.dump(without_resume)
        parts = instantiate(parser, self.config)
        self.algorithm, self.task, self.data = (parts[key] for key in CLASSES)
        self.loop, self.fabric, self.checkpoint, self.store, self.report = (parts[key] for key in GROUPS)
        self.seed = self.config.seed
        if self.resume:
            self.run_dir = resumed_run_dir(self.config, self.config_text, partial(complete, parser))
        else:
            name = config_name(argv) or type(self.algorithm).__name__.lower()
            self.run_dir = choose_run_dir(self.config.run_dir, name)
        try:
            self.data.setup(self.seed)
        except ConfigError as error:
            raise ConfigError(full_key(str(error), "data", self.config.data)) from error
        self.cohort_size = cohort_size(self.data.num_clients, self.loop.participation)
        self.lock: RunLock | None = None
        self.monitor: Monitor | None = None

    def __call__(self, fabric: Fabric) -> None:
        """Train on this rank, and leave with a code if it goes wrong or is stopped."""
        from pfl_lightning.cli.fit import complain

        try:
            code = self._train(fabric)
        except (ConfigError, RunError) as error:
            quiet = error.quiet if isinstance(error, LostRankError) else error.collective and not fabric.is_global_zero
            if quiet and error.collective:
                _let_rank_zero_speak()
            sys.exit(error.exit_code if quiet else complain(error))
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        finally:
            if self.monitor:
                self.monitor.close()
            if self.lock:
                self.lock.release()
        if code:
            sys.exit(code)

    def _train(self, fabric: Fabric) -> int:
        loop = FederatedFabricLoop(
            fabric, self.task, self.algorithm, self.data, self.loop, self.seed, stop=self.stop, store=self.store
        )
        # chosen once, on the first rank, and told to all: it may hold the time of day
        self.run_dir = Path(loop.comm.on_first(lambda: str(self.run_dir)))
        recording = recorders(self.report, loop, self.run_dir)
        loop.comm.on_first(self._claim)
        check_shared(self.run_dir, loop.comm)
        loop.store.settle(self.run_dir)
        checkpoints = Checkpoints(self.run_dir, loop, self.checkpoint, self.config_text)
        loop.on_round_end = [checkpoints.after_round, *recording]
        begun = resume(checkpoints, fallback=self.resume == AUTO) if self.resume else None
        if begun and begun > self.loop.rounds:
            raise ConfigError(
                f"loop.rounds: {self.loop.rounds} is not allowed; the run has done {begun} rounds already"
            )
        loop.comm.on_first(lambda: self._open_monitor(loop, begun))
        try:
            return self._fit(loop, checkpoints, begun or 0)
        except RunError as error:
            self.advise(error)
            raise

    def _fit(self, loop: FederatedFabricLoop, checkpoints: Checkpoints, begun: int) -> int:
        try:
            summary = loop.fit()
        except StopRound:
            return self._stopped(loop, checkpoints, begun)
        try:
            checkpoints.finish()
        finally:
            loop.comm.on_first(lambda: self._finish(summary))
        return 0

    def advise(self, error: RunError) -> None:
        """Add to an error how the run goes on, where it can."""
        if list_rounds(self.run_dir / "checkpoints"):
            error.args = (f"{error}; {resume_command(self.run_dir)} continues from the last checkpoint",)

    def _claim(self) -> None:
        """Make the run directory ours; everything that can be refused has been checked by now."""
        create(self.run_dir)
        self.lock = RunLock(self.run_dir)
        if not self.resume:
            check_free(self.run_dir)  # another run may have come and gone since we looked

    def _open_monitor(self, loop: FederatedFabricLoop, begun: int | None) -> None:
        try:
            write_text(self.run_dir / "config.yaml", self.config_text)
            with replacing(self.run_dir / "partition.safetensors") as aside:
                save_partition(self.data, aside)
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot write to {self.run_dir}: {error}") from error
        monitor = Monitor(self.run_dir, loop.history.columns(), self.loop.rounds, metrics=self.task.better)
        header = {
            "algorithm": type(self.algorithm).__name__,
            "data": f"{self.data.name}, {self.data.num_clients} clients, {self.cohort_size} in a round",
            "model": f"{type(self.task.net).__name__}, {loop.server.layout.num_parameters:,} parameters",
            "ranks": f"{loop.comm.world} on {loop.client.vector.device.type}",
            "run": str(self.run_dir) + (f", continued after round {begun}" if begun else ""),
        }
        self.monitor = loop.monitor = monitor
        figures = {} if begun else {"partition": draw_partition(self.data.label_counts())}
        monitor.start(header, self.config_text, figures, begun)

    def _finish(self, summary: Mapping[str, Any]) -> None:
        if self.monitor:
            self.monitor.finish({**summary, **origin(), "command": self.command})

    def _stopped(self, loop: FederatedFabricLoop, checkpoints: Checkpoints, begun: int) -> int:
        """The round was given up: save the last whole one, say so, and ask SLURM to start again where it wants that."""
        numbers = [number for seen in loop.comm.gather(list(self.stop.seen)) for number in seen]
        checkpoints.finish()
        loop.comm.on_first(lambda: self._say_stopped(loop.server.round + 1))
        count = len(self.stop.seen)
        if loop.comm.on_first(lambda: slurm.requeue(numbers, loop.server.round - begun)):
            self.stop.wait(slurm.PATIENCE_SECONDS, more_than=count)  # it ends us; to leave on our own would be final
            return 0
        return 128 + numbers[0]

    def _say_stopped(self, round_: int) -> None:
        if self.monitor:
            self.monitor.interrupted(round_, saved=True)


def _let_rank_zero_speak() -> None:
    """The launcher ends all ranks as soon as one has left: wait for that, so that the one with the words is first."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(SPEAKING_SECONDS)
