"""Damage one file of a saved run, continue the run, and compare it with a run whose files were not touched.

python tools/faults/damage_files.py --cases 200 [--seed 0] [--devices 1]
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tools.faults.process import Run, prepare, scratch_folder
from tools.faults.tiny_run import ROUNDS, command, names, outcome

MORE = 2
"""Rounds that are trained after the damage."""
DAMAGES = ("flip a byte", "truncate", "delete")
WARNED = ("clients.csv", "personal.csv")
COMMANDS = ("--resume auto", "--resume auto", "--resume DIR")


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    place = random.randrange(max(1, len(content)))
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(content[:place])
    else:
        flipped = bytes([content[place] ^ (1 << random.randrange(8))]) if content else b"x"
        path.write_bytes(content[:place] + flipped + content[place + 1 :])


def files(run_dir: Path) -> list[Path]:
    """All files of a run, those of checkpoints of any age included."""
    return sorted(path for path in run_dir.rglob("*") if path.is_file())


def verdict(run_dir: Path, code: int, log: str, before: dict[Path, bytes], expected: dict[str, Any]) -> str:
    """What became of a damaged run: `same`, `same, with a warning`, `refused with one line`, or a fault in capitals."""
    spoken = [line for line in log.splitlines() if line.startswith("pfl-fit: ")]
    errors = [line for line in spoken if line.startswith("pfl-fit: error: ")]
    if "Traceback" in log:
        return "TRACEBACK"
    if code == 0:
        found = outcome(run_dir)
        different = [name for name in found if found[name] != expected[name]]
        # these tables are not in the checkpoint, so a warning must name the damaged one
        reported = [name for name in WARNED if any(f"/{name} was damaged" in line for line in spoken)]
        if set(different) - set(reported):
            return f"DIFFERENT ({' '.join(different)})".upper()
        return "same, with a warning" if spoken else "same"
    if code != 2 or len(errors) != 1:
        return f"EXIT CODE {code} WITH {len(errors)} LINES"
    after = {path: path.read_bytes() for path in files(run_dir) if path.name != ".lock"}
    return "refused with one line" if after == before else "REFUSED, BUT FILES WERE CHANGED"


def surplus(run_dir: Path, code: int, expected: set[str]) -> set[str]:
    """Files more or fewer than those of the untouched run. A damaged TensorBoard file is kept under another name."""
    return (names(run_dir) - {"damaged_events_0"}) ^ expected if code == 0 else set()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args(argv)
    random.seed(options.seed)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    prepare()
    started, verdicts, left = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="pfl-faults-") as folder, scratch_folder(Path(folder)) as scratch:
        saved, untouched = Path(folder) / "saved", Path(folder) / "untouched"
        for path, rounds in ((saved, ROUNDS), (untouched, ROUNDS), (untouched, ROUNDS + MORE)):
            assert Run(command(path, options.devices, rounds), Path(folder) / "log").wait() == 0
        expected, expected_names = outcome(untouched), names(untouched)
        targets = [path.relative_to(saved) for path in files(saved)]
        for number in range(options.cases):
            run_dir, log = Path(folder) / "run", Path(folder) / f"run{number}.log"
            shutil.copytree(saved, run_dir)
            target, how = targets[number % len(targets)], random.choice(DAMAGES)
            damage(run_dir / target, how)
            before = {path: path.read_bytes() for path in files(run_dir) if path.name != ".lock"}
            way = random.choice(COMMANDS)
            words = command(run_dir, options.devices, ROUNDS + MORE)
            if way == "--resume DIR":
                words = ["--resume", str(run_dir), "--loop.rounds", str(ROUNDS + MORE)]
            code = Run(words, log).wait()
            found = verdict(run_dir, code, log.read_text(), before, expected)
            more = surplus(run_dir, code, expected_names) | set(os.listdir(scratch))
            verdicts[f"{way}: {found}"] += 1
            left += len(more)
            remark = f"  LEFT: {' '.join(sorted(more))}" if more else ""
            print(f"{number + 1:3}  {how:11}  {target!s:52}  {way:13}  {found}{remark}", flush=True)
            shutil.rmtree(run_dir)
    print(f"\n{options.cases} times one of {len(targets)} files was damaged, then the run was continued")
    for text, count in sorted(verdicts.items()):
        print(f"{text}: {count}")
    print(f"files more or fewer than those of the untouched run: {left}")
    print(f"seconds: {time.monotonic() - started:.0f}")
    return 1 if left or any(text.split(": ")[1].isupper() for text in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
