"""Cells as the tasks of SLURM job arrays."""

from __future__ import annotations

import getpass
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pfl_lightning.compare.plan import Cell
from pfl_lightning.foundation.atomic_files import make_folder, write_text
from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.foundation.shipped import SBATCH

LARGEST_ARRAY = 1000
"""SLURM's default MaxArraySize is 1001."""
WRAPPER = """#!/usr/bin/env bash
# Written by pfl-compare. Each task of the array trains the cell in its own line of tasks.tsv: config, run directory.
set -euo pipefail
line=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {tasks})
IFS=$'\\t' read -r config run_dir <<<"$line"
exec {python} -m pfl_lightning.cli "$@" --config "$config" --run_dir "$run_dir"
"""


def submit(
    tasks: Sequence[tuple[Cell, Path, Path]],
    folder: Path,
    name: str,
    ranks: int,
    options: str = "",
    env: Mapping[str, str] | None = None,
) -> list[tuple[str, int]]:
    """Submit cells as job arrays. Returns (job, number of tasks) of each.

    Args:
        tasks: cell, config file and run directory.
        folder: where the lists of tasks and the record of submitted jobs are kept.
        name: of the jobs.
        ranks: per cell.
        options: more options for sbatch, as on its command line.
        env: environment of the jobs. This process' by default.
    """
    jobs = []
    for start in range(0, len(tasks), LARGEST_ARRAY):
        part = tasks[start : start + LARGEST_ARRAY]
        job = _submit(part, folder, name, ranks, options, env)
        record = [*_record(folder), {"job": job, "cells": [cell.id for cell, _, _ in part]}]
        write_text(folder / "submitted.json", json.dumps(record, indent=1) + "\n")
        jobs.append((job, len(part)))
    return jobs


def queued(folder: Path) -> dict[str, str]:
    """Identity of a cell → its task, for all tasks that still wait or run."""
    record = _record(folder)
    if not record:
        return {}
    alive = set(_call(["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i"]).split())
    found = {}
    for entry in record:
        for index, cell in enumerate(entry["cells"]):
            if (task := f"{entry['job']}_{index}") in alive:
                found[cell] = task
    return found


def _submit(
    part: Sequence[tuple[Cell, Path, Path]],
    folder: Path,
    name: str,
    ranks: int,
    options: str,
    env: Mapping[str, str] | None,
) -> str:
    here = folder / f"array-{len(_record(folder)) + 1}"
    make_folder(here)
    lines = "".join(f"{config.resolve()}\t{run_dir.resolve()}\n" for _, config, run_dir in part)
    write_text(here / "tasks.tsv", lines)
    wrapper = here / "fit.sh"
    text = WRAPPER.format(tasks=shlex.quote(str((here / "tasks.tsv").resolve())), python=shlex.quote(sys.executable))
    write_text(wrapper, text)
    wrapper.chmod(0o755)
    words = ["sbatch", "--parsable", f"--array=0-{len(part) - 1}", f"--job-name={name}", "--nodes=1"]
    words += [f"--ntasks-per-node={ranks}", f"--output={here.resolve()}/%a.out"]
    words += [f"--export=ALL,PFL_FIT={wrapper.resolve()}", *shlex.split(options), str(SBATCH)]
    return _call(words, env).strip().partition(";")[0]


def _record(folder: Path) -> list[dict[str, list[str]]]:
    path = folder / "submitted.json"
    try:
        record: list[dict[str, list[str]]] = json.loads(path.read_text()) if path.is_file() else []
    except (OSError, ValueError) as error:
        raise ConfigError(f"slurm: {path} cannot be read; delete it if none of its jobs is left") from error
    return record


def _call(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    except FileNotFoundError:
        raise ConfigError(f"slurm: there is no {words[0]} here; run this where SLURM's commands are") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"slurm: {words[0]} does not answer") from None
    if done.returncode:
        raise RunError(f"slurm: {words[0]} failed: {' '.join(done.stderr.split())}")
    return done.stdout
