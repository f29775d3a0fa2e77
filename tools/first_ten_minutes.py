"""Walk a stranger's path in a fresh clone, time each step, and stop at the first that fails.

    python tools/first_ten_minutes.py [--folder DIR] [--venv DIR]

Install, train, compare three methods, report, export, own data, own algorithm: each step is a command as README and the
start pages print it. `--venv` reuses an environment that `make setup` has made, to save its minutes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = "client,label,height,weight\n" + "".join(
    f"{name},{'tall' if i % 2 else 'small'},{150 + 30 * (i % 2) + i % 7},{50 + i % 11}\n"
    for name in ("ann", "ben", "cem")
    for i in range(40)
)
OWN_DATA = """\
algorithm: FedPer
task: {class_path: Classification, init_args: {net: MLP}}
data: {class_path: Table, init_args: {source: people.csv}}
loop: {rounds: 5}
"""


def own_algorithm(folder: Path) -> None:
    """Copy the algorithm and the config of the guide into files, as its reader does."""
    guide = (ROOT / "docs/add_an_algorithm.md").read_text()
    for language, name in (("python", "trimmed_step.py"), ("yaml", "mine.yaml")):
        found = re.search(rf"```{language}\n(.*?)```", guide, re.S)
        assert found
        (folder / name).write_text(found[1])


def steps(venv: Path | None) -> dict[str, str]:
    """The name and the command of each step."""
    activate = f". {venv or '.venv'}/bin/activate"
    install = "make setup" if venv is None else f"test -x {venv}/bin/pfl-fit"
    here = 'export PYTHONPATH="$PWD"' if venv else "true"
    return {
        "install": install,
        **{
            name: f"{activate} && {here} && {command}"
            for name, command in {
                "first run": "pfl-fit --config fedobp_fashion10k --seed 7",
                "compare three methods": "pfl-compare configs/compare/first.yaml",
                "report": "pfl-report runs/compare/first",
                "export a model": "pfl-export $(ls -d runs/fedobp_fashion10k/* | head -1) --client 17",
                "own data": "pfl-fit --config own_data.yaml",
                "own algorithm": "pfl-fit --config mine.yaml --loop.rounds 3",
            }.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder of the clone; a temporary one by default")
    parser.add_argument("--venv", type=Path, help="environment to use instead of a new one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        clone = options.folder or Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        (clone / "people.csv").write_text(TABLE)
        (clone / "own_data.yaml").write_text(OWN_DATA)
        own_algorithm(clone)
        total = time.perf_counter()
        for name, command in steps(options.venv and options.venv.resolve()).items():
            print(f"{name}: {command.rpartition(' && ')[2]}", flush=True)
            started = time.perf_counter()
            ran = subprocess.run(["bash", "-c", command], cwd=clone, capture_output=True, text=True)
            print(f"    {time.perf_counter() - started:.0f} s, exit code {ran.returncode}", flush=True)
            if ran.returncode:
                print(ran.stdout[-3000:], ran.stderr[-3000:], sep="\n")
                return 1
        print(f"all steps: {time.perf_counter() - total:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
