"""How long a command takes to begin: `--help`, the import, and the way to the first round of the main job."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import ROOT, Bar, Part, Spread, take_turns

FIT = "import sys; from pfl_lightning.cli.fit import main; main(sys.argv[1:])"
MAIN = ["--config", str(ROOT / "configs/fedobp_fashion10k.yaml"), "--loop.rounds", "1", "--loop.eval_every", "0"]


def seconds(code: str, *words: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    return time.perf_counter() - begin


def first_round(devices: int) -> float:
    """Seconds of a job of one round, less that round: the start and the end."""
    with tempfile.TemporaryDirectory() as folder:
        whole = seconds(FIT, *MAIN, "--fabric.devices", str(devices), "--run_dir", f"{folder}/run")
        return whole - float(json.loads(Path(folder, "run/summary.json").read_text())["seconds"])


def main() -> None:
    part = Part("start", "Seconds from the command to the first round, and shorter ways", axis="seconds")
    options = part.options()
    things = {
        "import torch and lightning.fabric": lambda: seconds("import torch, lightning.fabric"),
        "import pfl_lightning.loop": lambda: seconds("import pfl_lightning.loop"),
        "pfl-fit --help": lambda: seconds(FIT, "--help"),
        "pfl-fit without its round, 1 rank": lambda: first_round(1),
        "pfl-fit without its round, 2 ranks": lambda: first_round(2),
    }
    found = take_turns(things, options.turns or (1 if options.quick else 3), warm_up=0 if options.quick else 1)
    bare = found["import torch and lightning.fabric"]
    for name, taken in found.items():
        ratio = Spread.of([a / b for a, b in zip(taken, bare, strict=True)])
        part.rows.append({"command": name, "seconds": Spread.of(taken).text(), "over importing torch": ratio.text()})
        part.bars.append(Bar(name, Spread.of(taken)))
    part.finish()


if __name__ == "__main__":
    main()
