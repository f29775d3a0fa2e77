"""A small, quick run for the fault tools: its command, its results, and the files it must leave."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path

ROUNDS = 12
NOT_COMPARED = ("seconds", "samples_per_second", "phase_seconds", "peak_memory", "command")
"""Entries of summary.json that differ between any two runs."""
TABLES = ("clients.csv", "personal.csv", "client_facts.csv")


def command(run_dir: Path, devices: int, rounds: int = ROUNDS) -> list[str]:
    """Start the run in `run_dir`, or continue it. A sixth of the clients is trained in a round, so that checkpoints
    have files of many ages."""
    return [
        "--algorithm", "FedOBP", "--algorithm.quantile", "0.9", "--data.num_clients", "24", "--data.partition", "IID",
        "--task.net", "MLP", "--task.net.hidden", "[16]", "--loop.rounds", str(rounds), "--loop.participation", "0.15",
        "--loop.eval_every", "4", "--loop.batch_size", "256", "--checkpoint.every_rounds", "1",
        "--fabric.devices", str(devices), "--resume", "auto", "--run_dir", str(run_dir),
    ]  # fmt: skip


def outcome(run_dir: Path) -> dict[str, Any]:
    """Everything that a fault must not change: results, all tables (metrics.csv without its seconds), and curves."""
    summary = json.loads((run_dir / "summary.json").read_text())
    rows = [line.split(",") for line in (run_dir / "metrics.csv").read_text().splitlines()]
    seconds = rows[0].index("seconds")
    found = {key: value for key, value in summary.items() if key not in NOT_COMPARED} | {
        "rows": [r[:seconds] + r[seconds + 1 :] for r in rows]
    }
    found |= {name: (run_dir / name).read_text() for name in TABLES}
    found["partition.safetensors"] = (run_dir / "partition.safetensors").read_bytes()
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    found["config.yaml"] = {key: value for key, value in config.items() if key != "run_dir"}
    found["run.json"] = sorted(json.loads((run_dir / "run.json").read_text()))
    return found | {"curves": curves(run_dir)}


def curves(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of all TensorBoard curves that do not measure time."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    names = [name for name in events.Tags()["scalars"] if not re.search("second|time|memory", name)]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def names(run_dir: Path) -> set[str]:
    """All files of a run, hidden ones too.

    Two things depend on how often a run was resumed: the number of TensorBoard files, so they count as one, and the
    rounds in which the parts of checkpoints were written, so parts that a manifest names are left out.
    """
    folder = run_dir / "checkpoints"
    manifests = [Manifest.read(manifest_path(folder, round_)) for round_ in list_rounds(folder)]
    named = {f"checkpoints/{part.name}" for manifest in manifests for part in manifest.files}
    found = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if not path.is_dir()} - named
    return {re.sub(r"^events\.out\.tfevents\..*\.pfl$", "events", name) for name in found}


def rows_of(run_dir: Path) -> int:
    """Number of rounds in metrics.csv."""
    path = run_dir / "metrics.csv"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0
