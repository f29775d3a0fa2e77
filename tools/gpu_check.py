"""A verdict about the GPUs of this machine: `python tools/gpu_check.py --out gpu_check`.

It runs the same short job on the CPU, twice on one GPU, and on two and four GPUs where there are as many. Then it
compares local training with a bare loop on the GPU and counts the waits of the host (tools/gpu_speed.py). It writes
verdict.md and verdict.json. Exit code: 0 all passed, 1 a check failed, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[1]
FIT = "import sys; from pfl_lightning.cli.fit import main; main(sys.argv[1:])"
JOB = ["--config", str(ROOT / "configs/fedobp_fashion10k.yaml"), "--loop.rounds", "3", "--loop.eval_every", "3"]
TOLERANCE = 0.02
"""The largest difference of an accuracy between a GPU and the CPU after three rounds."""
SLOWER = 1.05
"""The most that local training may take of the time of a bare loop."""
COLUMNS = ("all_acc_before", "all_acc_after", "all_global_acc")
HASHES = ("model_sha256", "clients_sha256")
Summary = Mapping[str, Any]


class Check(NamedTuple):
    """A line of the verdict."""

    name: str
    passed: bool | None
    """None: could not be checked here."""
    found: str


def verdict(runs: Mapping[str, Summary], speed: Mapping[str, float]) -> list[Check]:
    """The checks over the summaries of `cpu`, `1 GPU`, `1 GPU again`, and `2 GPUs` and `4 GPUs` if they ran."""
    one = runs["1 GPU"]
    apart = max(abs(one["last"][column] - runs["cpu"]["last"][column]) for column in COLUMNS)
    checks = [
        Check("accuracy as on the CPU", apart <= TOLERANCE, f"differs by {apart:.4f}, allowed {TOLERANCE}"),
        _same("the same bits twice", one, runs["1 GPU again"]),
    ]
    for count in (2, 4):
        other = runs.get(f"{count} GPUs")
        checks.append(_same(f"{count} GPUs as one", one, other))
    waits, ratio = speed["waits_per_step"], speed["over_bare"]
    rates = f"{speed['samples_per_second']:,.0f} and {speed['bare_samples_per_second']:,.0f} samples/s"
    checks.append(Check("no wait in a training step", waits == 0, f"{waits:g} waits per step"))
    checks.append(Check("as fast as a bare loop", ratio <= SLOWER, f"{ratio:.2f} of its time, {rates}"))
    return checks


def _same(name: str, one: Summary, other: Summary | None) -> Check:
    if other is None:
        return Check(name, None, "too few GPUs here")
    equal = all(one[key] == other[key] for key in HASHES)
    return Check(name, equal, "equal hashes" if equal else "the hashes differ")


def page(device: str, checks: Sequence[Check], runs: Mapping[str, Summary], device_memory: float) -> str:
    """The verdict as Markdown."""
    words = {True: "passed", False: "FAILED", None: "not checked"}
    lines = [f"# GPU check: {device}, torch {torch.__version__}", "", "| check | verdict | found |", "|---|---|---|"]
    lines += [f"| {check.name} | {words[check.passed]} | {check.found} |" for check in checks]
    lines += ["", "| run | samples/s | over the CPU | peak memory, MiB |", "|---|---|---|---|"]
    base = runs["cpu"]["samples_per_second"]
    for name, run in runs.items():
        rate, memory = run["samples_per_second"], max(run["peak_memory"]) / 2**20
        lines.append(f"| {name} | {rate:,.0f} | {rate / base:.2f} | {memory:,.0f} |")
    last = f"Peak memory is the host's. Local training took {device_memory / 2**20:,.0f} MiB of the GPU's."
    return "\n".join([*lines, "", last, ""])


def train(folder: Path, accelerator: str, devices: int) -> dict[str, Any]:
    """The summary of the job in a process of its own."""
    words = ["--fabric.accelerator", accelerator, "--fabric.devices", str(devices), "--run_dir", str(folder)]
    subprocess.run([sys.executable, "-c", FIT, *JOB, *words], check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def compare_with_bare_loop() -> dict[str, float]:
    """What tools/gpu_speed.py finds, in a process of its own."""
    words = [sys.executable, str(Path(__file__).with_name("gpu_speed.py"))]
    answer = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(answer.strip().splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the jobs and write the verdict. Returns the exit code."""
    parser = argparse.ArgumentParser(description="A verdict about the GPUs of this machine.")
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="a new folder for runs and verdict")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("gpu_check: error: torch sees no CUDA GPU here, so there is nothing to check", file=sys.stderr)
        return 2
    if options.out.exists():
        print(f"gpu_check: error: --out: {options.out} exists; name a new folder", file=sys.stderr)
        return 2
    counts = [count for count in (2, 4) if count <= torch.cuda.device_count()]
    jobs = {"cpu": ("cpu", 1), "1 GPU": ("cuda", 1), "1 GPU again": ("cuda", 1)}
    jobs |= {f"{count} GPUs": ("cuda", count) for count in counts}
    runs = {name: train(options.out / name.replace(" ", "_"), *job) for name, job in jobs.items()}
    speed = compare_with_bare_loop()
    checks = verdict(runs, speed)
    text = page(torch.cuda.get_device_name(0), checks, runs, speed["device_memory"])
    (options.out / "verdict.md").write_text(text)
    content = {"checks": [check._asdict() for check in checks], "runs": runs, "speed": speed}
    (options.out / "verdict.json").write_text(json.dumps(content, indent=1) + "\n")
    print(text)
    return int(any(check.passed is False for check in checks))


if __name__ == "__main__":
    sys.exit(main())
