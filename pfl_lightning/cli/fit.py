"""`pfl-fit`: train a federation from a config."""

from __future__ import annotations

import os
import shlex
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_lightning.cli.origin import origin
from pfl_lightning.errors import ConfigError, RunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsonargparse import Namespace
    from lightning.fabric import Fabric

    from pfl_lightning.loop import FederatedFabricLoop
    from pfl_lightning.monitor import Monitor


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Ends with exit code 2 for bad input, 1 for a run that failed, 130 after Ctrl-C."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv in (["--help"], ["-h"]):  # the same text as the parser's, without the seconds that torch takes to import
        print(resources.files("pfl_lightning.cli").joinpath("help.txt").read_text(), end="")
        return
    sys.exit(run(argv))


def run(argv: list[str]) -> int:
    """Parse, prepare, launch on all ranks; returns the exit code."""
    from pfl_lightning.cli.launch import launch, make_fabric

    sys.path.insert(0, os.getcwd())  # a user's own classes live in files beside their configs
    try:
        job = Job(argv)
        return launch(make_fabric(job.fabric, job.cohort_size), job)
    except (ConfigError, RunError) as error:
        return complain(error)
    except KeyboardInterrupt:
        return 130


def complain(error: ConfigError | RunError) -> int:
    """Say it in one line; returns the exit code."""
    print(f"pfl-fit: error: {error}", file=sys.stderr, flush=True)
    return error.exit_code


class Job:
    """One training run, from the parsed config to the files it leaves. Called on every rank."""

    def __init__(self, argv: list[str]) -> None:
        from pfl_lightning.cli.explain import full_key
        from pfl_lightning.cli.extends import config_name
        from pfl_lightning.cli.parser import build_parser, instantiate, parse
        from pfl_lightning.cli.run_dir import choose_run_dir
        from pfl_lightning.cohort import cohort_size

        parser = build_parser()
        self.command = shlex.join(["pfl-fit", *argv])
        self.config: Namespace = parse(parser, argv)
        self.config_text: str = parser.dump(self.config)
        parts = instantiate(parser, self.config)
        self.algorithm, self.task, self.data, self.loop, self.fabric = (
            parts[key] for key in ("algorithm", "task", "data", "loop", "fabric")
        )
        self.seed = self.config.seed
        try:
            self.data.setup(self.seed)
        except ConfigError as error:
            raise ConfigError(full_key(str(error), "data", self.config.data)) from error
        self.cohort_size = cohort_size(self.data.num_clients, self.loop.participation)
        self.run_dir = choose_run_dir(self.config.run_dir, config_name(argv) or type(self.algorithm).__name__.lower())

    def __call__(self, fabric: Fabric) -> None:
        """Train on this rank, and leave with a code if it goes wrong."""
        from pfl_lightning.cli.launch import INTERRUPTED

        try:
            self._train(fabric)
        except (ConfigError, RunError) as error:
            # what all ranks meet alike is said once
            sys.exit(complain(error) if fabric.is_global_zero or not error.collective else error.exit_code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def _train(self, fabric: Fabric) -> None:
        from pfl_lightning.cli.launch import interruptible
        from pfl_lightning.loop import FederatedFabricLoop

        loop = FederatedFabricLoop(fabric, self.task, self.algorithm, self.data, self.loop, self.seed)
        run_dir = Path(fabric.broadcast(str(self.run_dir)))
        monitor = loop.monitor = self._monitor(loop, run_dir) if fabric.is_global_zero else None
        try:
            with interruptible():
                summary = loop.fit()
            if monitor:
                monitor.finish(summary | origin() | {"command": self.command})
        except KeyboardInterrupt:
            if monitor:
                monitor.interrupted(loop.server.round)
            raise
        finally:
            if monitor:
                monitor.close()

    def _monitor(self, loop: FederatedFabricLoop, run_dir: Path) -> Monitor:
        """Make the run directory and open its files; everything that can be refused has been checked by now."""
        from pfl_lightning.cli.run_dir import create
        from pfl_lightning.data import save_partition
        from pfl_lightning.monitor import Monitor
        from pfl_lightning.report.partition import draw_partition

        create(run_dir)
        (run_dir / "config.yaml").write_text(self.config_text)
        save_partition(self.data, run_dir / "partition.safetensors")
        monitor = Monitor(run_dir, loop.history.columns(), self.loop.rounds, metrics=self.task.better)
        header = {
            "algorithm": type(self.algorithm).__name__,
            "data": f"{self.data.name}, {self.data.num_clients} clients, {self.cohort_size} in a round",
            "model": f"{type(self.task.net).__name__}, {loop.server.layout.num_parameters:,} parameters",
            "ranks": f"{loop.comm.world} on {loop.client.vector.device.type}",
            "run": str(run_dir),
        }
        monitor.start(header, self.config_text, {"partition": draw_partition(self.data.label_counts())})
        return monitor
