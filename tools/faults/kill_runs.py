"""Kill runs at random moments, resume them until they are done, and compare them with a run that nobody disturbed.

python tools/faults/kill_runs.py --runs 50 [--seed 0] [--devices 2]
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from pfl_lightning.checkpoint.manifest import list_rounds
from tools.faults.process import Run, prepare, scratch_folder
from tools.faults.tiny_run import ROUNDS, command, names, outcome, rows_of

MODES = (
    "all, while a checkpoint is written", "all processes", "one rank, while it writes a checkpoint", "one rank",
    "the process that started the ranks",
)  # fmt: skip


class Fact(NamedTuple):
    """What one kill did."""

    rows: int
    """Rounds in metrics.csv after the kill."""
    unfinished: list[str]
    """Files that were being written when the kill came."""
    resumes: int
    lost: int
    """Rounds that were in a complete checkpoint and were trained again."""
    again: int
    """Rounds in metrics.csv that were trained again."""


def unfinished_files(run_dir: Path) -> list[str]:
    """Temporary files. They exist only while a file is written."""
    found = []
    for folder in (run_dir / "checkpoints", run_dir):
        try:
            found += [name for name in os.listdir(folder) if name.startswith(".") and name.endswith(".tmp")]
        except FileNotFoundError:
            continue
    return found


def stop_while_writing(run: Run, run_dir: Path) -> bool:
    """Stop all processes at a moment when a file of a checkpoint is half written; False if the run ends before."""
    folder = run_dir / "checkpoints"
    while run.poll() is None:
        if folder.is_dir() and any(name.endswith(".tmp") for name in os.listdir(folder)):
            run.send(signal.SIGSTOP)
            if any(name.endswith(".tmp") for name in os.listdir(folder)):
                return True
            run.send(signal.SIGCONT)  # it was complete before the signal came
    return False


def strike(run: Run, run_dir: Path, mode: str, round_: int, seconds: float) -> bool:
    """Wait for a round, then for some time, and kill; False if the run was faster."""
    while rows_of(run_dir) < round_ and run.poll() is None:
        time.sleep(0.001)
    if "while" in mode:
        if not stop_while_writing(run, run_dir):
            return False
    else:
        time.sleep(seconds)
    ranks = run.ranks()
    if run.poll() is not None or not ranks:
        return False
    if mode.startswith("all"):
        run.send(signal.SIGKILL)
    else:
        victim = ranks[writer(run_dir, random.randrange(len(ranks)))] if mode.startswith("one") else run.pid
        os.kill(victim, signal.SIGKILL)
        run.send(signal.SIGCONT)
    return True


def writer(run_dir: Path, otherwise: int) -> int:
    """The rank that is writing a file of a checkpoint."""
    for name in unfinished_files(run_dir):
        found = re.search(r"-clients-(\d+)of", name)
        return int(found[1]) if found else 0
    return otherwise


def survive(run_dir: Path, mode: str, duration: float, devices: int) -> Fact:
    """One run: killed once at a random moment, then resumed until it is done."""
    log = run_dir.with_suffix(".log")
    while True:
        run = Run(command(run_dir, devices), log)
        if strike(run, run_dir, mode, random.randrange(ROUNDS), random.uniform(0, 2 * duration / ROUNDS)):
            run.wait()
            break
        assert run.wait() == 0, log.read_text()
        shutil.rmtree(run_dir)  # it was faster than the killer: try again
    rows, saved = rows_of(run_dir), max(list_rounds(run_dir / "checkpoints"), default=0)
    unfinished, resumes = unfinished_files(run_dir), 0
    while not (run_dir / "summary.json").exists():
        resumes += 1
        code = Run(command(run_dir, devices), log).wait()
        assert code == 0, f"exit code {code}:\n{log.read_text()}"
    text = log.read_text()
    assert "Traceback" not in text, text
    found = re.search(r"continued after round (\d+)", text)
    begun = int(found[1]) if found else 0
    if not resumes:  # killed after everything was written
        return Fact(rows, unfinished, 0, 0, 0)
    return Fact(rows, unfinished, resumes, saved - begun, max(0, rows - begun))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=2)
    options = parser.parse_args(argv)
    random.seed(options.seed)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    prepare()
    modes = MODES if options.devices > 1 else MODES[:2]
    started, different, left, facts = time.monotonic(), 0, 0, []
    with tempfile.TemporaryDirectory(prefix="pfl-faults-") as folder, scratch_folder(Path(folder)) as scratch:
        undisturbed = Path(folder) / "undisturbed"
        begin = time.monotonic()
        assert Run(command(undisturbed, options.devices), undisturbed.with_suffix(".log")).wait() == 0
        duration = time.monotonic() - begin
        expected, expected_names = outcome(undisturbed), names(undisturbed)
        for number in range(options.runs):
            run_dir, mode = Path(folder) / f"run{number}", modes[number % len(modes)]
            fact = survive(run_dir, mode, duration, options.devices)
            same = outcome(run_dir) == expected
            surplus = names(run_dir) ^ expected_names | set(os.listdir(scratch))
            different, left = different + (not same), left + len(surplus)
            facts.append(fact)
            print(f"{number + 1:3}  {mode:40} after round {fact.rows:2}, resumed {fact.resumes}x, "
                  f"{fact.again} trained again  {'same' if same else 'DIFFERENT'}  "
                  f"{' '.join(fact.unfinished)}{' LEFT: ' + ' '.join(sorted(surplus)) if surplus else ''}",
                  flush=True)  # fmt: skip
            shutil.rmtree(run_dir)
    lost, again = sum(fact.lost for fact in facts), max(fact.again for fact in facts)
    print(f"\n{options.runs} runs of {ROUNDS} rounds on {options.devices} ranks, each killed once and resumed")
    print(f"killed by SIGKILL, in turn: {'; '.join(modes)}")
    print(f"killed while a file was being written: {sum(bool(fact.unfinished) for fact in facts)}")
    print(f"different from the undisturbed run: {different}")
    print(f"rounds lost whose checkpoint was complete: {lost}")
    print(f"rounds trained again: at most {again} after one kill (its row was written, its checkpoint was not)")
    print(f"files more or fewer than those of the undisturbed run: {left}")
    print(f"seconds: {time.monotonic() - started:.0f}")
    return 0 if not different and not left and not lost and again <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
