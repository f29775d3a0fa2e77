"""Throw random mistakes at pfl-fit and check that each one ends cleanly.

python tools/faults/throw_mistakes.py --count 500 [--seed 0] [--only 17]

A mistake must end with exit code 0, 1, 2 or 130, without a traceback. Codes 1 and 2 come with exactly one line.
Code 2 leaves nothing behind. After the others there may be the directory of the run, but no temporary file.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tools.faults.mistakes import Mistake, random_mistake
from tools.faults.process import prepare, scratch_folder

SECONDS = 1800.0
ALLOWED = (0, 1, 2, 130)
ERROR = "pfl-fit: error: "
WARNING = re.compile(r"^(\S+\.py:\d+: .*\n(  .*\n)?|pfl-fit: warning: .*\n)", re.MULTILINE)
"""A warning, of a library with the line of code it comes from."""


class Outcome(NamedTuple):
    """How a mistake ended."""

    code: int
    out: str
    err: str
    left: list[str]
    """Files and folders that were not there before."""

    def problems(self) -> list[str]:
        """All that is wrong with it; empty if nothing is."""
        found = []
        lines = WARNING.sub("", self.err).splitlines()
        if self.code not in ALLOWED:
            found.append(f"exit code {self.code}")
        if "Traceback" in self.out + self.err:
            found.append("traceback")
        if self.code in (1, 2) and (len(lines) != 1 or not lines[0].startswith(ERROR)):
            found.append(f"{len(lines)} lines on stderr")
        if self.code == 2 and self.left:
            found.append(f"left behind: {self.left[:5]}")
        stray = [name for name in self.left if "tmp" in Path(name).name or Path(name).name.startswith(".pfl-fit-")]
        if stray:
            found.append(f"temporary files: {stray[:5]}")
        folders = {str(Path(name).parent) for name in self.left if Path(name).name == "config.yaml"}
        runs = {str(path) for folder in folders for path in (Path(folder), *Path(folder).parents)}
        loose = [name for name in self.left if name not in runs and not {str(p) for p in Path(name).parents} & folders]
        if loose:
            found.append(f"outside of a run directory: {loose[:5]}")
        return found


def mistake_number(seed: int, number: int) -> Mistake:
    """The mistake with this number; it does not depend on the others."""
    return random_mistake(random.Random(f"{seed}/{number}"))


def throw(mistake: Mistake, folder: Path) -> Outcome:
    """Run the command in a forked process, which need not import torch again, inside an empty folder."""
    work, logs = folder / "work", (folder / "out", folder / "err")
    work.mkdir()
    for name, content in mistake.files.items():
        (work / name).write_bytes(content)
    before = set(work.rglob("*"))
    sys.stdout.flush()
    with scratch_folder(folder) as scratch:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(mistake.words, work, logs))
        code = _wait(pid)
        forgotten = [f"scratch/{name}" for name in os.listdir(scratch)]
    left = sorted(str(path.relative_to(work)) for path in set(work.rglob("*")) - before)
    left = [name for name in left if "__pycache__" not in name] + forgotten
    return Outcome(code, *(log.read_text(errors="replace") for log in logs), left)


def _child(words: list[str], work: Path, logs: tuple[Path, Path]) -> int:
    os.setsid()
    os.chdir(work)
    for descriptor, log in enumerate(logs, start=1):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    from pfl_lightning.cli.fit import main

    try:
        main(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 99
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 98
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _wait(pid: int) -> int:
    """The exit code, or -9 if it took too long."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=500, help="number of mistakes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="throw this one alone and show what happens")
    options = parser.parse_args()
    prepare()
    os.environ["PFL_DATA"] = "data"
    codes: collections.Counter[int] = collections.Counter()
    bad = 0
    for number in [options.only] if options.only is not None else range(options.count):
        folder = Path(tempfile.mkdtemp(prefix="pfl-mistake-"))
        mistake = mistake_number(options.seed, number)
        outcome = throw(mistake, folder)
        shutil.rmtree(folder)
        codes[outcome.code] += 1
        problems = outcome.problems()
        bad += bool(problems)
        if problems or options.only is not None:
            print(f"{number}: {problems} {shlex.join(mistake.words)}\n{outcome.err[-1500:]}", flush=True)
            for name, content in mistake.files.items():
                print(f"--- {name}\n{content.decode(errors='replace')}", flush=True)
    print(f"{sum(codes.values())} mistakes, {bad} ended badly; exit codes: {dict(sorted(codes.items()))}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
