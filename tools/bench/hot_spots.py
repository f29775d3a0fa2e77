"""Where the time of a round goes: by phase, and by operator with torch's profiler, before the work on speed and now.

A round of FedOBP with the CNN on 3x32x32 images, on one rank: 4 clients of 400 samples, 5 epochs, batches of 32, every
client tested before and after; all of them have been visited before. The package as it was is taken from the
repository's history; both are measured in processes of their own, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from federation import RandomImages, make_loop
from measure import ROOT, Part, Spread, take_turns
from torch.profiler import ProfilerActivity, profile

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.nets import CNN

BEFORE = "6f6a8dc"
"""The last commit before anything was done for speed."""
TOOLS_BEFORE = "3576835"
"""The last commit whose benchmark imports modules by their names of that time."""
SHOWN = 16


def measure(rounds: int, clients: int, samples: int, epochs: int) -> dict[str, dict[str, float]]:
    """In this process: milliseconds a round of each phase, and of each operator when it is profiled."""
    torch.set_num_threads(1)
    loop = make_loop(RandomImages((3, 32, 32), [samples] * clients, samples // 3), CNN, FedOBP(), local_epochs=epochs)
    phases = [loop.round().phases for _ in range(1 + rounds)][1:]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        loop.round()
    return {
        "phases": {name: 1000 * Spread.of([each[name] for each in phases]).median for name in phases[0]},
        "operators": {event.key: event.self_cpu_time_total / 1000 for event in profiler.key_averages()},
    }


def elsewhere(package: str, words: list[str]) -> dict[str, Any]:
    """The same in a process of its own, with the package and the benchmark in that folder."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", f"{package}/tools/bench/hot_spots.py", "--one", *words],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": package},
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def rows(found: Mapping[str, list[dict[str, Any]]], what: str, label: str) -> list[dict[str, str]]:
    """A row per phase or operator, with its milliseconds a round before and now."""
    totals = {when: Spread.of([sum(answer[what].values()) for answer in found[when]]).median for when in found}
    spreads: dict[str, dict[str, Spread]] = {}
    for name in {name: None for answers in found.values() for name in answers[0][what]}:
        spreads[name] = {when: Spread.of([a[what].get(name, 0.0) for a in found[when]]) for when in found}
    order = sorted(spreads, key=lambda name: -max(spread.median for spread in spreads[name].values()))
    table = []
    for name in order[:SHOWN]:
        row = {label: f"`{name}`" if "::" in name else name}
        for when, spread in spreads[name].items():
            row |= {f"{when}, ms": spread.text(1), f"{when}, %": f"{100 * spread.median / totals[when]:.1f}"}
        table.append(row)
    whole = {f"{when}, ms": f"{total:.1f}" for when, total in totals.items()}
    return [*table, {**dict.fromkeys(table[0], ""), label: "all", **whole}]


def main() -> None:
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--one", action="store_true", help="measure the package that is imported and print JSON")
    more.add_argument("--before", default=BEFORE, help="the commit to compare with")
    part = Part("hot_spots", "Where the time of a round goes", more=more)
    options = part.options()
    if options.one:
        print(json.dumps(measure(*((1, 2, 64, 1) if options.quick else (3, 4, 400, 5)))))
        return
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", folder, options.before], check=True)
        try:
            subprocess.run(["git", "-C", folder, "checkout", "--quiet", TOOLS_BEFORE, "--", "tools/bench"], check=True)
            packages = {"before": folder, "now": str(ROOT)}
            words = ["--quick"] if options.quick else []
            things = {when: partial(elsewhere, package, words) for when, package in packages.items()}
            found = take_turns(things, options.turns or (1 if options.quick else 3), warm_up=0)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)
    part.rows, part.second_rows = rows(found, "phases", "phase"), rows(found, "operators", "operator")
    part.finish()


if __name__ == "__main__":
    main()
