"""Kill runs at random moments, resume them until they are done, and compare with a run that nobody disturbed.

python tools/faults/kill_runs.py --runs 50 [--seed 0] [--devices 2]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

sys.path.insert(0, str(Path(__file__).parents[2]))
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from tools.faults.process import Run

ROUNDS = 12
JOB = [
    "--algorithm", "FedOBP", "--algorithm.quantile", "0.9", "--data.num_clients", "12", "--data.partition", "IID",
    "--task.net", "MLP", "--task.net.hidden", "[8]", "--loop.rounds", str(ROUNDS), "--loop.participation", "0.5",
    "--loop.eval_every", "4", "--loop.batch_size", "128", "--checkpoint.every_rounds", "1",
]  # fmt: skip
MODES = (
    "all processes", "one rank", "all, while a checkpoint is written", "one rank, while a checkpoint is written",
    "the process that started the ranks",
)  # fmt: skip
COMPARED = ("model_sha256", "clients_sha256", "last", "best", "best_per_client", "up_bytes", "down_bytes", "rounds")


def job(run_dir: Path, devices: int) -> list[str]:
    return [*JOB, "--fabric.devices", str(devices), "--resume", "auto", "--run_dir", str(run_dir)]


def outcome(run_dir: Path) -> dict[str, Any]:
    """All that must not depend on kills: the summary's results, metrics.csv but for its seconds, a curve."""
    summary = json.loads((run_dir / "summary.json").read_text())
    rows = [line.split(",") for line in (run_dir / "metrics.csv").read_text().splitlines()]
    seconds = rows[0].index("seconds")
    found = {key: summary[key] for key in COMPARED} | {"rows": [r[:seconds] + r[seconds + 1 :] for r in rows]}
    curve = EventAccumulator(str(run_dir)).Reload().Scalars("accuracy/before")
    return found | {"curve": [(event.step, event.value) for event in curve]}


def left_over(folder: Path) -> list[Path]:
    """Temporary files, and parts of checkpoints that no checkpoint names."""
    aside = [path for path in folder.rglob("*") if path.name.endswith(".tmp") or path.name.startswith(".pfl-fit-")]
    orphans = []
    for checkpoints in folder.glob("*/checkpoints"):
        manifests = [Manifest.read(manifest_path(checkpoints, round_)) for round_ in list_rounds(checkpoints)]
        named = {part.name for manifest in manifests for part in manifest.files}
        orphans += [path for path in checkpoints.glob("*.safetensors") if path.name not in named]
    return aside + orphans


def rows_of(run_dir: Path) -> int:
    path = run_dir / "metrics.csv"
    return max(0, path.read_text().count("\n") - 1) if path.exists() else 0


def strike(run: Run, run_dir: Path, mode: str, round_: int, seconds: float) -> bool:
    """Wait for so many rounds, then so many seconds, and kill; False if the run was faster."""
    while rows_of(run_dir) < round_ and run.poll() is None:
        time.sleep(0.001)
    end = time.monotonic() + seconds
    while time.monotonic() < end and run.poll() is None:
        time.sleep(0.001)
    while "written" in mode and not any(run_dir.glob("checkpoints/.*.tmp")):
        if run.poll() is not None:
            return False
    if run.poll() is not None:
        return False
    if mode.startswith("one"):
        ranks = run.ranks()
        if not ranks:
            return False
        os.kill(random.choice(ranks), signal.SIGKILL)
    elif mode.startswith("the"):
        os.kill(run.pid, signal.SIGKILL)
    else:
        run.kill()
    return True


def survive(run_dir: Path, mode: str, duration: float, devices: int) -> dict[str, int]:
    """One run: killed once at a random moment, then resumed until it is done."""
    log = run_dir.with_suffix(".log")
    while True:
        run = Run(job(run_dir, devices), log)
        if strike(run, run_dir, mode, random.randrange(ROUNDS), random.uniform(0, 2 * duration / ROUNDS)):
            run.wait()
            break
        assert run.wait() == 0, log.read_text()
        shutil.rmtree(run_dir)  # it was faster than the killer: once more
    rows, saved, resumes = rows_of(run_dir), max(list_rounds(run_dir / "checkpoints"), default=0), 0
    while not (run_dir / "summary.json").exists():
        resumes += 1
        code = Run(job(run_dir, devices), log).wait()
        assert code == 0, f"exit code {code}:\n{log.read_text()}"
    text = log.read_text()
    assert "Traceback" not in text, text
    found = re.search(r"continued after round (\d+)", text)
    begun = int(found[1]) if found else 0
    if not resumes:  # killed after all was written
        begun = rows
    return {"resumes": resumes, "killed": rows, "lost": saved - begun if resumes else 0, "again": rows - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=2)
    options = parser.parse_args()
    random.seed(options.seed)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells what it drops, as it should
    import torch.utils.tensorboard  # noqa: F401 (imported once, for all runs)

    import pfl_lightning.cli.job  # noqa: F401

    started, wrong, left, facts = time.monotonic(), 0, 0, []
    with tempfile.TemporaryDirectory(prefix="pfl-faults-") as folder:
        undisturbed = Path(folder) / "undisturbed"
        begin = time.monotonic()
        assert Run(job(undisturbed, options.devices), undisturbed.with_suffix(".log")).wait() == 0
        duration = time.monotonic() - begin
        expected = outcome(undisturbed)
        for number in range(options.runs):
            run_dir = Path(folder) / f"run{number}"
            mode = MODES[number % len(MODES)]
            fact = survive(run_dir, mode, duration, options.devices)
            same = outcome(run_dir) == expected
            wrong, left = wrong + (not same), left + len(left_over(run_dir.parent))
            facts.append(fact)
            print(f"{number + 1:3}  {mode:40} after round {fact['killed']:2}, resumed {fact['resumes']}x, "
                  f"{fact['again']} round done again  {'same' if same else 'DIFFERENT'}", flush=True)  # fmt: skip
            shutil.rmtree(run_dir)
    lost, again = sum(fact["lost"] for fact in facts), max(fact["again"] for fact in facts)
    print(f"\n{options.runs} runs of {ROUNDS} rounds on {options.devices} ranks, each killed once and resumed")
    print(f"killed by SIGKILL, in turn: {'; '.join(MODES)}")
    print(f"different from the undisturbed run: {wrong}")
    print(f"rounds lost whose checkpoint was complete: {lost}")
    print(f"rounds done again: at most {again} by one kill (its row was there, its checkpoint not yet)")
    print(f"temporary or unneeded files left over: {left}")
    print(f"seconds: {time.monotonic() - started:.0f}")
    sys.exit(0 if not wrong and not left and not lost and again <= 1 else 1)


if __name__ == "__main__":
    main()
