"""Does this version compute the same results as an older one? Short runs of every config, with both versions.

    git worktree add ../before 3576835
    python tools/same_results.py --old ../before --out runs/same_results

Every config of the older version that needs no download runs for three rounds on one and on two ranks. Both versions
get the older version's config, and `OPTIONS` brings back what has changed on purpose. Models, client states and
columns of metrics.csv are compared. Finished runs are kept in the folder, so the same command goes on after a stop.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[1]
RANKS = (1, 2)
ROUNDS = 3
SHORT = f"--loop.rounds {ROUNDS} --loop.eval_every 0 --loop.local_epochs 1 --fabric.accelerator cpu"
FEW_CLIENTS = "--data.num_clients 20 --loop.participation 0.2"


class Options(NamedTuple):
    """The options of a config beside `SHORT`."""

    both: str = ""
    new: str = ""
    """Restores the former behaviour."""


OPTIONS = {
    "feddwa": Options(both="--loop.local_epochs 2", new="--algorithm.guidance_epochs 1"),
    "learn2pfed_polynomial": Options(new="--data.offset coefficient"),
    "pfedsop": Options(both="--task.optimizer.momentum 0"),
}
"""By the first part of a config's name."""
DRIVER = """
import json, os, sys
from pfl_lightning.cli import fit
for job in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.argv = ["pfl-fit", *job]
        try:
            code = fit.run(job)
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        os._exit(1 if isinstance(code, str) else code or 0)
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), job, flush=True)
"""
"""Runs jobs in forks of a process that has imported everything."""


def names(old: Path) -> list[str]:
    """The configs of the older version on embedded or generated data."""
    return [*sorted(path.stem for path in old.glob("configs/*_fashion10k.yaml")), "learn2pfed_polynomial"]


def run(tree: Path, jobs: Sequence[Sequence[str]]) -> None:
    """Run jobs with one version of the code."""
    command = [sys.executable, "-c", DRIVER, json.dumps(jobs)]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("exit code") and line.split()[2] != "0"]
    if failed or done.returncode:
        print("\n".join(failed), done.stderr[-2000:], sep="\n", flush=True)


def job(name: str, ranks: int, old: Path, is_new: bool, folder: Path) -> list[str]:
    """The options of a run."""
    special = OPTIONS.get(name, OPTIONS.get(name.partition("_")[0], Options()))
    text = f"{SHORT} {'' if 'polynomial' in name else FEW_CLIENTS} {special.both} {special.new if is_new else ''}"
    config = ["--config", str(old / f"configs/{name}.yaml")]
    return [*config, *text.split(), "--fabric.devices", str(ranks), "--run_dir", str(folder)]


def read_metrics(folder: Path) -> dict[str, list[str]]:
    """The columns of metrics.csv that do not depend on time."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0] if name != "seconds"}


def read_states(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors that each client keeps, by name."""
    states: dict[str, dict[str, Tensor]] = {}
    for path in sorted((folder / "checkpoints").glob("*-clients-*.safetensors"), key=lambda path: path.name[:8]):
        found: dict[str, dict[str, Tensor]] = {}
        for key, tensor in load_file(path).items():
            client, name = key.split("/", 1)
            found.setdefault(client, {})[name.removeprefix("memory/")] = tensor
        states |= found
    return states


def compare_states(old: Path, new: Path) -> str:
    """How the tensors of the clients differ, in words."""
    was, now = read_states(old), read_states(new)
    if was.keys() != now.keys():
        return "other clients have states"
    lists = [(set(was[client]), set(now[client])) for client in was]
    gone, added = set().union(*(a - b for a, b in lists)), set().union(*(b - a for a, b in lists))
    shared = {(client, name) for client in was for name in was[client].keys() & now[client].keys()}
    differ = {name for client, name in shared if not _equal(was[client][name], now[client][name])}
    parts = [f"other {', '.join(sorted(differ))}"] if differ else ["equal tensors"]
    parts += [f"without {', '.join(sorted(gone))}"] if gone else []
    parts += [f"with {', '.join(sorted(added))}"] if added else []
    return ", ".join(parts)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())


def compare(name: str, ranks: int, out: Path) -> dict[str, Any]:
    """A row of the table."""
    old, new = (out / age / f"{name}-{ranks}" for age in ("old", "new"))
    if not (old / "summary.json").exists() or not (new / "summary.json").exists():
        return {"config": name, "ranks": ranks, "model": "not run", "clients": "", "columns": ""}
    was, now = (json.loads((folder / "summary.json").read_text()) for folder in (old, new))
    same = {key: was[key] == now[key] for key in ("model_sha256", "clients_sha256")}
    columns, others = read_metrics(old), read_metrics(new)
    differ = [column for column, values in columns.items() if column in others and others[column] != values]
    return {
        "config": name,
        "ranks": ranks,
        "model": "equal" if same["model_sha256"] else "differs",
        "clients": "equal" if same["clients_sha256"] else compare_states(old, new),
        "columns": f"other {', '.join(differ)}" if differ else "equal",
    }


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table. Configs with equal results share a line."""
    plain = {"model": "equal", "clients": "equal", "columns": "equal"}
    fine = [row for row in rows if all(row[key] == value for key, value in plain.items())]
    lines = ["| config | ranks | model | client states | columns |", "|---|---|---|---|---|"]
    lines += [f"| {len(fine)} of {len(rows)} runs | | equal | equal | equal |"]
    lines += [f"| {' | '.join(str(value) for value in row.values())} |" for row in rows if row not in fine]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Short runs of every config with two versions of the code.")
    parser.add_argument("--old", type=Path, required=True, help="checkout of the older version")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/same_results", help="folder of the runs")
    parser.add_argument("--configs", nargs="*", help="configs to run now. Default: all. None: only print the table")
    parser.add_argument("--ranks", nargs="*", type=int, default=RANKS, help="numbers of ranks to run now")
    options = parser.parse_args()
    old, out = options.old.resolve(), options.out.resolve()
    chosen = names(old) if options.configs is None else options.configs
    for age, tree in {"old": old, "new": ROOT}.items():
        folders = {(name, ranks): out / age / f"{name}-{ranks}" for name in chosen for ranks in options.ranks}
        missing = {key: path for key, path in folders.items() if not (path / "summary.json").exists()}
        if missing:
            run(tree, [job(name, ranks, old, age == "new", path) for (name, ranks), path in missing.items()])
    rows = [compare(name, ranks, out) for name in names(old) for ranks in RANKS]
    print(markdown(rows))


if __name__ == "__main__":
    main()
