"""A verdict about the GPUs of this machine: `python tools/gpu_check.py --out gpu_check`.

It runs the same short job on the CPU, twice on one GPU, once without `fabric.deterministic`, once with CUDA graphs, and
on two and four GPUs where there are as many. Then it compares local training with a bare loop on the GPU and counts the
waits of the host (tools/gpu_speed.py). It writes verdict.md and verdict.json, with a line for each job that failed.
Exit code: 0 all passed, 1 a check or a job failed, 2 there is no GPU.
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


def verdict(runs: Mapping[str, Summary], speed: Mapping[str, float] | None) -> list[Check]:
    """The checks over the summaries of the jobs that ran, by name, and over what tools/gpu_speed.py found."""
    one = runs.get("1 GPU")
    checks = [
        _near("accuracy as on the CPU", one, runs.get("cpu")),
        _same("the same bits twice", one, runs.get("1 GPU again")),
        _near("CUDA graphs as without", one, runs.get("1 GPU, CUDA graphs")),
    ]
    checks += [_same(f"{count} GPUs as one", one, runs.get(f"{count} GPUs")) for count in (2, 4)]
    if speed is None:
        return checks
    waits, ratio = speed["waits_per_step"], speed["over_bare"]
    rates = f"{speed['samples_per_second']:,.0f} and {speed['bare_samples_per_second']:,.0f} samples/s"
    checks.append(Check("no wait in a training step", waits == 0, f"{waits:g} waits per step"))
    checks.append(Check("as fast as a bare loop", ratio <= SLOWER, f"{ratio:.2f} of its time, {rates}"))
    return checks


def _near(name: str, one: Summary | None, other: Summary | None) -> Check:
    if one is None or other is None:
        return Check(name, None, "no run to compare with")
    apart = max(abs(one["last"][column] - other["last"][column]) for column in COLUMNS)
    return Check(name, apart <= TOLERANCE, f"differs by {apart:.4f}, allowed {TOLERANCE}")


def _same(name: str, one: Summary | None, other: Summary | None) -> Check:
    if one is None or other is None:
        return Check(name, None, "no run to compare with")
    equal = all(one[key] == other[key] for key in HASHES)
    return Check(name, equal, "equal hashes" if equal else "the hashes differ")


def page(device: str, checks: Sequence[Check], runs: Mapping[str, Summary], device_memory: float | None) -> str:
    """The verdict as Markdown."""
    words = {True: "passed", False: "FAILED", None: "not checked"}
    lines = [f"# GPU check: {device}, torch {torch.__version__}", "", "| check | verdict | found |", "|---|---|---|"]
    lines += [f"| {check.name} | {words[check.passed]} | {check.found} |" for check in checks]
    lines += ["", "| run | samples/s | over 1 GPU | peak memory, MiB |", "|---|---|---|---|"]
    for name, run in runs.items():
        rate, memory = run["samples_per_second"], max(run["peak_memory"]) / 2**20
        over = f"{rate / runs['1 GPU']['samples_per_second']:.2f}" if "1 GPU" in runs else ""
        lines.append(f"| {name} | {rate:,.0f} | {over} | {memory:,.0f} |")
    last = "Three rounds each, so the rate with CUDA graphs has the compilation in it. Peak memory is the host's."
    if device_memory is not None:
        last += f" Local training took {device_memory / 2**20:,.0f} MiB of the GPU's."
    return "\n".join([*lines, "", last, ""])


def jobs_for(gpus: int) -> dict[str, list[str]]:
    """The options of each job on a machine with so many GPUs."""
    one = ["--fabric.accelerator", "cuda", "--fabric.devices", "1"]
    jobs = {
        "cpu": ["--fabric.accelerator", "cpu", "--fabric.devices", "1"],
        "1 GPU": one,
        "1 GPU again": one,
        "1 GPU, not deterministic": [*one, "--fabric.deterministic", "false"],
        "1 GPU, CUDA graphs": [*one, "--loop.compile", "inductor", "--loop.compile_mode", "reduce-overhead"],
    }
    counts = (count for count in (2, 4) if count <= gpus)
    return jobs | {f"{n} GPUs": ["--fabric.accelerator", "cuda", "--fabric.devices", str(n)] for n in counts}


def train(folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """The summary of the job in a process of its own."""
    run([sys.executable, "-c", FIT, *JOB, *options, "--run_dir", str(folder)])
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def run(words: Sequence[str]) -> str:
    """What a program prints."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise JobError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return done.stdout


class JobError(Exception):
    """The last line that a failed job printed."""


def compare_with_bare_loop() -> dict[str, float]:
    """What tools/gpu_speed.py finds, in a process of its own."""
    answer = run([sys.executable, str(Path(__file__).with_name("gpu_speed.py"))])
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
    runs: dict[str, Summary] = {}
    failed: list[Check] = []
    speed = None
    for name, words in jobs_for(torch.cuda.device_count()).items():
        try:
            runs[name] = train(options.out / name.replace(",", "").replace(" ", "_"), words)
        except JobError as error:
            failed.append(Check(f"job: {name}", False, str(error)))
    try:
        speed = compare_with_bare_loop()
    except JobError as error:
        failed.append(Check("job: bare loop", False, str(error)))
    checks = [*failed, *verdict(runs, speed)]
    text = page(torch.cuda.get_device_name(0), checks, runs, speed["device_memory"] if speed else None)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "verdict.md").write_text(text)
    content = {"checks": [check._asdict() for check in checks], "runs": runs, "speed": speed}
    (options.out / "verdict.json").write_text(json.dumps(content, indent=1) + "\n")
    print(text)
    return int(any(check.passed is False for check in checks))


if __name__ == "__main__":
    sys.exit(main())
