"""Is this version as fast as an older one? The same jobs with two checkouts, taking turns.

    git worktree add ../before 3576835
    python tools/bench/versions.py --old ../before

Each job is a short `pfl-fit` in a process of its own, in the environment of this command. The number is the median
seconds of its rounds without the first one (the seconds of evaluations are part of a round). Jobs that are the same in
both versions end with the same model, which is checked.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from measure import ROOT, Part, Spread, ratios, take_turns

FASHION = "--config configs/fedavg_fashion10k.yaml --loop.eval_every 0 --fabric.devices"
JOBS = {
    "round": f"{FASHION} 1 --loop.rounds 6",
    "two_cores": f"{FASHION} 2 --loop.rounds 6",
    "personalization": f"{FASHION} 1 --algorithm FedOBP --loop.rounds 6",
    "federation_size": f"{FASHION} 1 --loop.rounds 6 --data.num_clients 1200 --data.partition IID"
    " --loop.participation 0.02",
    "evaluation": f"{FASHION} 1 --loop.rounds 4 --loop.local_epochs 1 --loop.participation 0.02 --loop.eval_every 1",
}


def job_seconds(tree: Path, options: str, models: dict[str, str]) -> float:
    """The median seconds of a job's rounds in one checkout."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    start = "from pfl_lightning.cli.fit import main; main()"
    command = [sys.executable, "-c", start, *options.split()]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run([*command, "--run_dir", str(run)], cwd=tree, env=environment, check=True, capture_output=True)
        models[str(tree)] = json.loads((run / "summary.json").read_text())["model_sha256"]
        with (run / "metrics.csv").open(newline="") as file:
            return median(float(row["seconds"]) for row in list(csv.DictReader(file))[1:])


def main() -> None:
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--old", type=Path, required=True, help="checkout of the older version")
    more.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    part = Part("versions", "two versions of the code, the same jobs", more=more)
    options = part.options()
    turns = options.turns or (1 if options.quick else 7)
    old, new = options.old.resolve(), ROOT
    for name in options.jobs:
        models: dict[str, str] = {}
        things = {str(tree): partial(job_seconds, tree, JOBS[name], models) for tree in (old, new)}
        found = take_turns(things, turns, warm_up=0)
        if models[str(old)] != models[str(new)]:
            print(f"{name}: the two versions end with different models")
        ratio = ratios(found[str(new)], found[str(old)])
        row = {"job": name, "new / old": ratio.text(3), "goal": "0.98 to 1.02"}
        row |= {f"{age}, s a round": Spread.of(found[str(tree)]).text(3) for age, tree in (("old", old), ("new", new))}
        part.rows.append(row | {"same model": "yes" if models[str(old)] == models[str(new)] else "no"})
        print(row, flush=True)
    part.finish()


if __name__ == "__main__":
    main()
