"""What checkpoints cost: seconds for one, and the share of the time of the main job, at the default settings and when
every round is saved.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from federation import one_rank
from measure import ROOT, Bar, Part, Spread, take_turns

from pfl_lightning.checkpoint import Checkpoints
from pfl_lightning.cli.job import Job
from pfl_lightning.foundation.signals import StopSignals
from pfl_lightning.loop import FederatedFabricLoop

MAIN = ["--config", str(ROOT / "configs/fedobp_fashion10k.yaml"), "--fabric.devices", "1"]
SETTINGS = {"default settings": [], "every round": ["--checkpoint.every_rounds", "1"]}
GOAL = 0.02


class Watched(Checkpoints):
    """Notes the time that saving takes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seconds: list[float] = []

    def save(self) -> str | None:
        begin, before = time.perf_counter(), self.saved_round
        problem = super().save()
        if self.saved_round != before:
            self.seconds.append(time.perf_counter() - begin)
        assert problem is None, problem
        return problem


def run(words: list[str], rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        job = Job([*MAIN, *words, "--loop.rounds", str(rounds), "--run_dir", f"{folder}/run"], StopSignals())
        loop = FederatedFabricLoop(one_rank(), job.task, job.algorithm, job.data, job.loop, job.seed)
        checkpoints = Watched(job.run_dir, loop, job.checkpoint, job.config_text)
        begin = time.perf_counter()
        loop.fit([checkpoints])
        checkpoints.finish()
        total = time.perf_counter() - begin
        taken = checkpoints.seconds
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        return {"share": sum(taken) / total, "one": sum(taken) / len(taken), "count": len(taken), "bytes": size}


def main() -> None:
    part = Part("checkpoint", "Share of the main job's time that checkpoints take, %", axis="%")
    options = part.options()
    turns, rounds = (1, 3) if options.quick else (2, 40)
    things = {name: lambda words=words: run(words, rounds) for name, words in SETTINGS.items()}
    found = take_turns(things, options.turns or turns, warm_up=0)
    for name, answers in found.items():
        share = Spread.of([100 * answer["share"] for answer in answers])
        part.rows.append(
            {
                "when": name,
                "share of the time, %": share.text(),
                "goal": f"{100 * GOAL:.0f}" if name == "default settings" else "",
                "ms for one": Spread.of([1000 * answer["one"] for answer in answers]).text(0),
                "checkpoints": f"{answers[0]['count']:.0f} in {rounds} rounds",
                "MiB on disk": f"{answers[-1]['bytes'] / 2**20:.1f}",
            }
        )
        part.bars.append(Bar(name, share, 100 * GOAL if name == "default settings" else None))
    part.finish()


if __name__ == "__main__":
    main()
