"""What checkpoints cost: seconds for one, and the share of a run's time at the default settings.

python tools/bench/checkpoints.py [--rounds 100] [words of pfl-fit, e.g. --config configs/fedobp_fashion10k.yaml]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from lightning.fabric import Fabric

from pfl_lightning.checkpoint import Checkpoints
from pfl_lightning.cli.job import Job
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.signals import StopSignals

MAIN = ["--config", str(Path(__file__).parents[2] / "configs/fedobp_fashion10k.yaml")]


class Watched(Checkpoints):
    """Notes the time that saving takes."""

    seconds: list[float] = []  # noqa: RUF012 (one object is made)

    def save(self) -> str | None:
        begin = time.perf_counter()
        problem = super().save()
        self.seconds.append(time.perf_counter() - begin)
        assert problem is None, problem
        return problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    options, words = parser.parse_known_args()
    job = Job([*(words or MAIN), "--loop.rounds", str(options.rounds), "--fabric.devices", "1"], StopSignals())
    folder = Path(tempfile.mkdtemp(prefix="pfl-bench-"))
    try:
        fabric = Fabric(accelerator="cpu", devices=1)
        loop = FederatedFabricLoop(fabric, job.task, job.algorithm, job.data, job.loop, job.seed)
        checkpoints = Watched(folder, loop, job.checkpoint, job.config_text)
        loop.on_round_end = [checkpoints.after_round]
        begin = time.perf_counter()
        loop.fit()
        checkpoints.finish()
        total = time.perf_counter() - begin
        taken, size = checkpoints.seconds, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    finally:
        shutil.rmtree(folder)
    print(f"{options.rounds} rounds of {(total - sum(taken)) / options.rounds:.3f} s on one rank")
    print(f"{len(taken)} checkpoints of {1000 * sum(taken) / len(taken):.0f} ms, {size / 2**20:.1f} MiB on disk")
    print(f"share of the time: {100 * sum(taken) / total:.2f} %")


if __name__ == "__main__":
    main()
