"""Would the tests notice? Make small errors in the algorithms, one at a time, and run the tests of the method.

python tools/mutants --budget 500 [--seed 0] [--files fedpac.py parts/features.py] [--again] [--out FOLDER]

The errors come in a random order that the seed decides. What has been tried is remembered in the folder, so the same
command goes on where it was stopped, and a larger budget tries more. `--again` tries the survivors again, after tests
have been added. `--deliberate` tries the errors of `deliberate.py`, which somebody thought of. The report of all that
the folder knows is FOLDER/report.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tools.mutants.deliberate import ERRORS, Error
from tools.mutants.operators import Mutant, count, mutant, mutated
from tools.mutants.report import write_report
from tools.mutants.runner import Runner
from tools.mutants.targets import CODE, files, target_of


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=500, help="mutants that are tried in all, earlier ones included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="*", default=files(), help="under pfl_lightning/algorithms; all by default")
    parser.add_argument("--again", action="store_true", help="only those that have survived")
    parser.add_argument("--deliberate", action="store_true", help="only the errors of deliberate.py")
    parser.add_argument("--own", action="store_true", help="without the contract: quick, and more survive")
    parser.add_argument("--longest", type=float, default=2.0, help="leave out tests of more CPU seconds")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "pfl_mutants")
    return parser.parse_args()


class Case(NamedTuple):
    """A file with an error."""

    key: str
    file: str
    source: str
    error: Mutant | Error


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "tried.jsonl"
    tried = {row["key"]: row for row in map(json.loads, log.read_text().splitlines())} if log.exists() else {}
    survived = {key for key, row in tried.items() if row["status"] == "survived"}
    cases = deliberate(args.files) if args.deliberate else drawn(args.files, args.seed, args.budget)
    cases = [case for case in cases if (case.key in survived if args.again else case.key not in tried)]
    runner = Runner(args.out, args.longest, contract=not args.own)
    for case in cases:
        outcome = runner.run(target_of(case.file), case.file, case.source)
        tried[case.key] = {"key": case.key, **case.error._asdict(), **outcome._asdict()}
        with log.open("a") as lines:
            lines.write(json.dumps(tried[case.key]) + "\n")
        print(f"{outcome.status:8} {outcome.cpu:5.1f} s  {case.key}  {outcome.test}", flush=True)
        write_report(args.out / "report.md", list(tried.values()))


def deliberate(names: Sequence[str]) -> list[Case]:
    """The errors of `deliberate.py`."""
    cases = []
    for error in ERRORS:
        source = error.make((CODE / error.file).read_text())
        if source is None:
            sys.exit(f"{error.file}: {error.name}: the text to replace is not there exactly once")
        if error.file in names:
            cases.append(Case(f"{error.file} | deliberate | {error.name}", error.file, source, error))
    return cases


def drawn(names: Sequence[str], seed: int, budget: int) -> list[Case]:
    """So many small errors, drawn at random."""
    sources = {file: (CODE / file).read_text() for file in names}
    order = [(file, number) for file, source in sources.items() for number in range(count(source))]
    order.sort(key=lambda pair: hashlib.sha256(f"{seed} {pair}".encode()).digest())
    found = [mutant(file, sources[file], number) for file, number in order[:budget]]
    return [Case(m.key, m.file, mutated(sources[m.file], m.number), m) for m in found]


if __name__ == "__main__":
    main()
