"""Is this version as fast as an older one? The same jobs with two checkouts, taking turns round by round.

    git worktree add ../before 3576835
    python tools/bench/versions.py --old ../before

Each job is a `pfl-fit` with either version, in the environment of this command. Both are started first. Then they take
turns, and each turn is one round (with its evaluation, if the job has one). The numbers are ratios inside a turn: of
the seconds of the slowest rank, and of the CPU seconds of all ranks, which other work on the machine disturbs less.
Both runs must end with the same model, which is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from measure import ROOT, Part, Spread, ratios

FASHION = "--config configs/fedavg_fashion10k.yaml --loop.eval_every 0 --fabric.accelerator cpu --fabric.devices"
JOBS = {
    "round": f"{FASHION} 1",
    "two_cores": f"{FASHION} 2",
    "personalization": f"{FASHION} 1 --algorithm FedOBP",
    "federation_size": f"{FASHION} 1 --data.num_clients 1200 --data.partition IID --loop.participation 0.02",
    "evaluation": f"{FASHION} 1 --loop.local_epochs 1 --loop.participation 0.02 --loop.eval_every 1",
}
WARM_UP = 2
GOAL = 0.02


class Turn(NamedTuple):
    """A round of one version."""

    wall: float
    cpu: float


class Version:
    """A run of one version, which does a round when it is asked to.

    Args:
        tree: the checkout.
        options: those of pfl-fit.
        rounds: number of rounds.
        folder: an empty folder for the run and its pipes.
    """

    def __init__(self, tree: Path, options: str, rounds: int, folder: Path) -> None:
        self.folder, ranks = folder, int(options.partition("--fabric.devices ")[2].split()[0])
        self.ranks = range(ranks)
        for rank in self.ranks:
            os.mkfifo(folder / f"go-{rank}")
            os.mkfifo(folder / f"done-{rank}")
        worker = [sys.executable, str(Path(__file__).with_name("version_worker.py")), str(folder)]
        command = [*worker, *options.split(), "--loop.rounds", str(rounds), "--run_dir", str(folder / "run")]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        self.process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL)

    def round(self) -> Turn:
        """Do a round."""
        for rank in self.ranks:
            (self.folder / f"go-{rank}").write_text("go")
        found = [Turn(*map(float, (self.folder / f"done-{rank}").read_text().split())) for rank in self.ranks]
        return Turn(max(turn.wall for turn in found), sum(turn.cpu for turn in found))

    def model(self) -> str:
        """The checksum of the model at the end of the run."""
        if self.process.wait():
            raise SystemExit(f"a run of {self.process.args!r} failed")
        return str(json.loads((self.folder / "run/summary.json").read_text())["model_sha256"])


def compare(old: Path, new: Path, options: str, turns: int) -> tuple[dict[str, list[Turn]], bool]:
    """The rounds of both versions, and whether they end with the same model."""
    with tempfile.TemporaryDirectory() as folder:
        versions = {}
        for age, tree in (("old", old), ("new", new)):
            (Path(folder) / age).mkdir()
            versions[age] = Version(tree, options, WARM_UP + turns, Path(folder) / age)
        found: dict[str, list[Turn]] = {age: [] for age in versions}
        for turn in range(WARM_UP + turns):
            for age in ("old", "new") if turn % 2 else ("new", "old"):
                found[age].append(versions[age].round())
        models = {version.model() for version in versions.values()}
    return {age: rounds[WARM_UP:] for age, rounds in found.items()}, len(models) == 1


def main() -> None:
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--old", type=Path, required=True, help="checkout of the older version")
    more.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    part = Part("versions", "two versions of the code, the same jobs", more=more)
    options = part.options()
    turns = options.turns or (2 if options.quick else 24)
    for name in options.jobs:
        found, same = compare(options.old.resolve(), ROOT, JOBS[name], turns)
        wall, cpu = ({age: [turn[i] for turn in rounds] for age, rounds in found.items()} for i in range(2))
        row = {"job": name, "new / old": ratios(wall["new"], wall["old"]).text(3)}
        row |= {"CPU, new / old": ratios(cpu["new"], cpu["old"]).text(3), "goal": f"{1 - GOAL:g} to {1 + GOAL:g}"}
        row |= {f"{age}, s a round": Spread.of(wall[age]).text(3) for age in wall}
        part.rows.append(row | {"same model": "yes" if same else "no"})
        print(part.rows[-1], flush=True)
    part.finish()


if __name__ == "__main__":
    main()
