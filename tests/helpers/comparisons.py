"""Comparisons without training: a resolver of plain dictionaries, and run directories with made-up numbers."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

from pfl_lightning.checkpoint.files import PartFile
from pfl_lightning.checkpoint.manifest import Manifest
from pfl_lightning.checkpoint.marker import Marker
from pfl_lightning.compare.experiment import Experiment, Keys
from pfl_lightning.compare.experiment_file import experiment_from
from pfl_lightning.compare.layers import merge
from pfl_lightning.compare.plan import Cell
from pfl_lightning.foundation.errors import ConfigError

CLIENTS = 10
OPTIONS = {
    "FedAvg": {"weighting": "samples"},
    "Local": {},
    "FedOBP": {"quantile": 0.9},
    "Ditto": {"lam": 1.0, "first_visit": "global"},
    "FedPAC": {"head_lr": 0.1},
}
DEFAULTS: dict[str, Any] = {
    "task": {"class_path": "toy.Task", "init_args": {"net": {"class_path": "toy.CNN"}, "optimizer": {"lr": 0.1}}},
    "data": {
        "class_path": "toy.Data",
        "init_args": {"num_clients": CLIENTS, "alpha": 0.3, "seed": None, "validation_share": 0.0},
    },
    "loop": {
        "rounds": 4,
        "participation": 0.2,
        "local_epochs": 5,
        "batch_size": 10,
        "eval_every": 2,
        "finetune_epochs": 0,
    },
    "fabric": {"accelerator": "auto", "devices": "auto", "num_nodes": 1, "precision": "32-true", "timeout": 600.0},
    "seed": 0,
    "run_dir": None,
    "resume": None,
}


class ToyResolver:
    """Resolves configs without the parser of the command."""

    def read(self, path: Path) -> dict[str, Any]:
        return yaml.safe_load(path.read_text()) or {}

    def resolve(self, config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
        full = copy.deepcopy(merge([DEFAULTS, config]))
        algorithm = keys.get("algorithm", full.get("algorithm"))
        node = {"class_path": algorithm} if isinstance(algorithm, str) else dict(algorithm or {})
        name = node["class_path"].rpartition(".")[2]
        if name not in OPTIONS:
            raise ConfigError(f"algorithm: no class {name}")
        full["algorithm"] = {"class_path": f"toy.{name}", "init_args": {**OPTIONS[name], **node.get("init_args", {})}}
        for key, value in keys.items():
            if key == "algorithm":
                continue
            *parents, last = key.split(".")
            place = full
            for parent in parents:
                place = place[parent]
                place = place.get("init_args", place)
            if last not in place:
                raise ConfigError(f"{key}: no such key")
            place[last] = value
        return full

    def is_algorithm(self, name: str) -> bool:
        return name in OPTIONS

    def directions(self, config: Mapping[str, Any]) -> tuple[Mapping[str, str], bool]:
        return {"acc": "higher", "loss": "lower"}, True


def experiment(**content: Any) -> Experiment:
    """An experiment as if read from `toy.yaml`."""
    return experiment_from({"methods": ["FedAvg", "FedOBP"], **content}, Path("toy.yaml"))


def made_up(cell: Cell, round_: int, client: int) -> float:
    """A client's accuracy: any number from 0 to 1, but always the same."""
    digest = hashlib.sha256(f"{cell.id} {round_} {client}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def write_run(
    path: Path, cell: Cell, rounds: int | None = None, checkpoint: bool = True, clients: bool = False, **changes: Any
) -> Path:
    """A run directory as `pfl-fit` leaves it.

    Args:
        path: the directory.
        cell: whose config and numbers.
        rounds: that are done; all by default, and only then is there a summary.
        checkpoint: whether there is one.
        clients: whether there is a clients.csv.
        **changes: entries of summary.json.
    """
    path.mkdir(parents=True, exist_ok=True)
    done = cell.rounds if rounds is None else rounds
    text = yaml.safe_dump({**_without_null(cell.config), "run_dir": str(path)})
    (path / "config.yaml").write_text(text)
    write_metrics(path, cell, done)
    write_partition(path, cell)
    saved = checkpoint and done > 0
    Marker(text, has_checkpoint=saved or (path / "checkpoints").exists()).write(path)
    if saved:
        (path / "checkpoints").mkdir(exist_ok=True)
        manifest(done, text).write(path / "checkpoints")
    if clients:
        write_clients(path, cell, done)
    if done == cell.rounds:
        write_summary(path, cell, **changes)
    return path


def write_metrics(path: Path, cell: Cell, rounds: int) -> None:
    with (path / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "seconds", "samples", "up_bytes", "down_bytes", "all_acc_before",
                         "all_acc_before_worst10", "all_acc_finetuned", "all_acc_validation"])  # fmt: skip
        for round_ in range(1, rounds + 1):
            values = sorted(made_up(cell, round_, client) for client in range(CLIENTS))
            tested = [sum(values) / CLIENTS, values[0], sum(values) / CLIENTS, 1 - sum(values) / CLIENTS]
            evaluates = round_ % 2 == 0 or round_ == cell.rounds
            writer.writerow([round_, 0.5, 100, 2**20, 2**20, *(tested if evaluates else [""] * 4)])


def write_summary(path: Path, cell: Cell, **changes: Any) -> None:
    mean = sum(sorted(made_up(cell, cell.rounds, client) for client in range(CLIENTS))) / CLIENTS
    summary = {
        "algorithm": cell.config["algorithm"]["class_path"].rpartition(".")[2],
        "seed": cell.seed,
        "rounds": cell.rounds,
        "num_clients": CLIENTS,
        "last": {"all_acc_before": mean},
        "best_per_client_visits": {"acc_after": 0.75},
        "best_per_client_evaluations": {"acc_before": 0.8},
        **changes,
    }
    (path / "summary.json").write_text(json.dumps(summary))


def write_clients(path: Path, cell: Cell, rounds: int) -> None:
    with (path / "clients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "client", "all_acc_before", "all_acc_finetuned"])
        for round_ in range(2, rounds + 1, 2):
            for client in range(CLIENTS):
                writer.writerow([round_, client, *[made_up(cell, round_, client)] * 2])


def write_partition(path: Path, cell: Cell) -> None:
    seed = cell.config["data"]["init_args"]["seed"]
    tensors = {"indices": np.arange(5) + 100 * (cell.seed if seed is None else seed)}
    save_file(tensors, path / "partition.safetensors", {"data": "toy"})


def manifest(round_: int, config: str) -> Manifest:
    """The manifest of a checkpoint whose files nobody reads."""
    files = [PartFile(f"{round_:08d}-server.safetensors", "", 0, 0)]
    return Manifest("", round_, 0, 0, "", "", config, files, [], {}, [])


def _without_null(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {key: _without_null(value) for key, value in config.items() if value is not None}
    return config
