"""Walk a stranger's path in a fresh clone, time each step, and stop at the first that fails.

    python tools/first_ten_minutes.py [--folder DIR] [--venv DIR]

Install and train, compare three methods, report, export, own model, own data, own algorithm and its test. Every
command, every class and every config is read from README or a page of docs, so a step works as it is printed or not at
all. After each step the files that the page promises must be there. `--venv` reuses an environment that `make setup`
has made, to save its minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = "client,label,height,weight\n" + "".join(
    f"{name},{'tall' if i % 2 else 'small'},{150 + 30 * (i % 2) + i % 7},{50 + i % 11}\n"
    for name in ("ann", "ben", "cem")
    for i in range(40)
)
"""The reader's own data: the one thing that no page can print."""


@dataclass(frozen=True)
class Step:
    """A page, the beginnings of the lines to copy from it, and what they leave.

    `blocks` are files to save: a name, and words in the block of the page. `leaves` is a pattern of files.
    """

    page: str
    lines: tuple[str, ...]
    leaves: str = ""
    blocks: dict[str, str] = field(default_factory=dict)


INSTALL = "install and train"
STEPS = {
    INSTALL: Step("README.md", ("make fit",), "runs/fedobp_fashion10k/*/summary.json"),
    "activate": Step("docs/start/install.md", (". .venv/bin/activate", "pfl-fit --version")),
    "second run": Step("README.md", ("pfl-fit --config fedobp_fashion10k",), "runs/fedobp_fashion10k/*/metrics.csv"),
    "compare three methods": Step(
        "README.md", ("pfl-compare configs/compare/first.yaml",), "runs/compare/first/table.md"
    ),
    "report": Step("README.md", ("pfl-report runs/compare/first",), "runs/compare/first/report/report.html"),
    "export a model": Step(
        "docs/start/first_comparison.md",
        ("pfl-export runs/compare/first/",),
        "runs/compare/first/runs/FedPer-seed-0-*/export/client_17.safetensors",
    ),
    "own model": Step(
        "docs/start/first_model.md",
        ("pfl-fit --algorithm FedPer --task my_module",),
        "runs/fedper/*/summary.json",
        {"my_module.py": "LitClassifier("},
    ),
    "own data": Step(
        "docs/own_data.md",
        ("pfl-fit --config mine.yaml",),
        "runs/mine/*/summary.json",
        {"mine.yaml": "source: people.csv, label"},
    ),
    "own algorithm": Step(
        "docs/add_an_algorithm.md",
        ("pfl-fit --config mine.yaml", "pytest test_trimmed_step.py"),
        "runs/mine/*/summary.json",
        {
            "trimmed_step.py": "class TrimmedStep",
            "mine.yaml": "class_path: trimmed_step",
            "test_trimmed_step.py": "check_algorithm(",
        },
    ),
}


def copied(step: Step, text: str, folder: Path) -> list[str]:
    """Save the blocks of a page that a step needs, and return its commands without comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
    for name, word in step.blocks.items():
        (folder / name).write_text(next(block for block in blocks if word in block))
    printed = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    commands = []
    for start in step.lines:
        found = [line for line in printed if line.startswith(start)]
        if not found:
            raise SystemExit(f"{step.page} does not print: {start}")
        commands.append(found[0])
    return commands


def conditions(python: Path) -> str:
    """The machine, its load and the versions."""
    code = "import sys, torch; print(f'Python {sys.version.split()[0]}, torch {torch.__version__}')"
    versions = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.processor())
    return f"{processor}, {os.cpu_count()} cores, {versions}"


def clone_to(folder: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder of the clone; a temporary one by default")
    parser.add_argument("--venv", type=Path, help="environment to use instead of a new one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        clone = (options.folder or Path(scratch) / "clone").resolve()
        clone_to(clone)
        (clone / "people.csv").write_text(TABLE)
        venv = options.venv.resolve() if options.venv else clone / ".venv"
        environment = os.environ | ({"PYTHONPATH": str(clone)} if options.venv else {})
        rows, begun, load = [], time.perf_counter(), os.getloadavg()[0]
        for name, step in STEPS.items():
            if name == INSTALL and options.venv:
                continue
            commands = copied(step, (clone / step.page).read_text(), clone)
            if name != INSTALL:
                commands = [f". {venv}/bin/activate", *(line for line in commands if not line.startswith(". "))]
            there = set(clone.glob(step.leaves or "README.md"))
            print(f"{name}: {commands[-1]}", flush=True)
            started = time.perf_counter()
            shell = ["bash", "-e", "-c", "\n".join(commands)]
            ran = subprocess.run(shell, cwd=clone, capture_output=True, text=True, env=environment)
            seconds = time.perf_counter() - started
            print(f"    {seconds:.0f} s, exit code {ran.returncode}", flush=True)
            missing = step.leaves and not set(clone.glob(step.leaves)) - there
            if ran.returncode or missing:
                print(ran.stdout[-3000:], ran.stderr[-3000:], f"missing: {step.leaves}" * bool(missing), sep="\n")
                return 1
            rows.append(f"| {name} | `{step.lines[0]}…` | {seconds:.0f} s |")
        total = time.perf_counter() - begun
        print(f"\n{conditions(venv / 'bin/python')}. Load before: {load:.1f}, after: {os.getloadavg()[0]:.1f}.\n")
        print("| step | command | time |\n|---|---|---|", *rows, f"| all steps | | {total:.0f} s |", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
