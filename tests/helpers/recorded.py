"""Short runs of every method, and their recorded results: `tests/recorded/results.json`."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from pfl_lightning.cli.parser import build_parser, instantiate, parse
from pfl_lightning.loop import FederatedFabricLoop

CONFIGS = Path(__file__).parents[2] / "configs"
FILE = Path(__file__).parents[1] / "recorded" / "results.json"
SHORT = ["--loop.rounds", "2", "--loop.eval_every", "2", "--loop.local_epochs", "1"]
FEW_CLIENTS = ["--data.num_clients", "6", "--loop.participation", "0.34"]
EVERY = 20
"""One sample in so many is used."""
HASHES = ("model_sha256", "clients_sha256")
SPECIAL = {"floco_fashion10k": ["--algorithm.tau", "1"], "flocoplus_fashion10k": ["--algorithm.tau", "1"]}
"""Options that bring the interesting part of a method into two rounds."""


def names() -> list[str]:
    """The configs on embedded or generated data."""
    return [*sorted(path.stem for path in CONFIGS.glob("*_fashion10k.yaml")), "learn2pfed_polynomial"]


def this_platform() -> str:
    """Everything that the last bits of a result depend on: torch and the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().partition("\n\n")[0].splitlines() if info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    # a virtual machine hides the name of its processor, and pFedFDA's factorizations differ between families
    words = [f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts]
    processor = ", ".join([facts.get("model name") or platform.processor() or platform.machine(), *words])
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {processor}"


def run(name: str) -> dict[str, Any]:
    """Run a config for two rounds on one rank. Returns its hashes and the latest metrics of all clients."""
    parser = build_parser()
    options = [*SHORT, *([] if "polynomial" in name else FEW_CLIENTS), *SPECIAL.get(name, [])]
    parts = instantiate(parser, parse(parser, ["--config", str(CONFIGS / f"{name}.yaml"), *options]))
    if name != "learn2pfed_polynomial":
        whole = parts["data"].load()
        part = whole._replace(x=whole.x[::EVERY], y=whole.y[::EVERY], num_train=0)
        parts["data"].load = lambda: part
    parts["data"].setup(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    loop = FederatedFabricLoop(fabric, parts["task"], parts["algorithm"], parts["data"], parts["loop"], seed=0)
    summary = loop.fit()
    metrics = {column: value for column, value in summary["last"].items() if column.startswith("all_")}
    return {**{key: summary[key] for key in HASHES}, "metrics": metrics}


def load() -> dict[str, Any]:
    """The recorded results: metrics per config, and hashes per platform and config."""
    recorded: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"metrics": {}, "hashes": {}}
    return recorded


def record(chosen: list[str]) -> None:
    """Run some configs and replace their recorded results."""
    recorded = load()
    hashes = recorded["hashes"].setdefault(this_platform(), {})
    for name in chosen:
        result = run(name)
        hashes[name] = {key: result[key] for key in HASHES}
        recorded["metrics"][name] = {column: round(value, 4) for column, value in result["metrics"].items()}
    FILE.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
