"""The logic of tools/gpu_check.py, with made-up summaries: there is no GPU here."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture
def gpu_check(monkeypatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    yield gpu_check
    sys.modules.pop("gpu_check")


@pytest.fixture
def gpu_speed(monkeypatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_speed

    yield gpu_speed
    for name in ("gpu_speed", "bare", "plain_nets"):
        sys.modules.pop(name)


def summary(model: str = "a", accuracy: float = 0.5) -> dict[str, Any]:
    last = {"all_acc_before": accuracy, "all_acc_after": 0.6, "all_global_acc": 0.4}
    hashes = {"model_sha256": model, "clients_sha256": "c"}
    return {**hashes, "last": last, "samples_per_second": 100.0, "peak_memory": [2**20]}


def test_without_a_gpu_it_says_so_in_one_line(gpu_check, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == ("gpu_check: error: torch sees no CUDA GPU here, so there is nothing to check\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "speed", "failed"),
    [
        ({}, {}, []),
        ({"1 GPU again": summary("b")}, {}, ["the same bits twice"]),
        ({"2 GPUs": summary("b")}, {}, ["2 GPUs as one"]),
        ({"cpu": summary(accuracy=0.53)}, {}, ["accuracy as on the CPU"]),
        ({}, {"waits_per_step": 0.1}, ["no wait in a training step"]),
        ({}, {"over_bare": 1.06}, ["as fast as a bare loop"]),
        ({"1 GPU CUDA graphs": summary(accuracy=0.53)}, {}, ["CUDA graphs as without"]),
    ],
)
def test_it_runs_what_fits_and_names_what_failed(gpu_check, monkeypatch, tmp_path, changed, speed, failed):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Pretended")
    out, asked = tmp_path / "out", []

    def train(folder: Path, options: list[str]) -> dict[str, Any]:
        folder.mkdir(parents=True)
        asked.append((options[1], options[3], *options[4:]))
        return changed.get(folder.name.replace("_", " "), summary())

    monkeypatch.setattr(gpu_check, "train", train)
    rates = {"samples_per_second": 90.0, "bare_samples_per_second": 90.0, "device_memory": 2**20}
    monkeypatch.setattr(
        gpu_check, "compare_with_bare_loop", lambda: {"waits_per_step": 0.0, "over_bare": 1.0, **rates, **speed}
    )
    assert gpu_check.main(["--out", str(out)]) == int(bool(failed))
    assert asked == [
        ("cpu", "1"),
        ("cuda", "1"),
        ("cuda", "1"),
        ("cuda", "1", "--fabric.deterministic", "false"),
        ("cuda", "1", "--loop.compile", "inductor", "--loop.compile_mode", "reduce-overhead"),
        ("cuda", "2"),
    ]
    checks = json.loads((out / "verdict.json").read_text())["checks"]
    assert [check["name"] for check in checks if check["passed"] is False] == failed
    assert [check["name"] for check in checks if check["passed"] is None] == ["4 GPUs as one"]
    assert "# GPU check: Pretended" in (out / "verdict.md").read_text()
    assert gpu_check.main(["--out", str(out)]) == 2, "nothing is overwritten"


@pytest.mark.parametrize("job", ["cpu", "1 GPU", "1 GPU, CUDA graphs", "2 GPUs", "bare loop"])
def test_a_job_that_fails_is_a_line_of_the_verdict(gpu_check, monkeypatch, tmp_path, job):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Pretended")
    failing = gpu_check.jobs_for(2).get(job, "tools/gpu_speed.py")
    rates = {"samples_per_second": 90.0, "bare_samples_per_second": 90.0, "device_memory": 2**20}

    def run(words: list[str]) -> str:
        if words[1].endswith("gpu_speed.py"):
            if job == "bare loop":
                raise gpu_check.JobError("no room")
            return json.dumps({"waits_per_step": 0.0, "over_bare": 1.0, **rates})
        if words[-2 - len(failing) : -2] == failing and (job != "1 GPU" or not words[-1].endswith("again")):
            raise gpu_check.JobError("no room")
        folder = Path(words[-1])
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(summary()))
        return ""

    monkeypatch.setattr(gpu_check, "run", run)
    out = tmp_path / "out"
    assert gpu_check.main(["--out", str(out)]) == 1
    checks = json.loads((out / "verdict.json").read_text())["checks"]
    assert [(c["name"], c["found"]) for c in checks if c["passed"] is False] == [(f"job: {job}", "no room")]
    assert f"| job: {job} | FAILED | no room |" in (out / "verdict.md").read_text()


def test_a_program_that_fails_leaves_its_last_line(gpu_check):
    with pytest.raises(gpu_check.JobError, match=r"^pfl-fit: error: this$"):
        gpu_check.run([sys.executable, "-c", "import sys; sys.exit('a line\\npfl-fit: error: this')"])
    assert gpu_check.run([sys.executable, "-c", "print(7)"]) == "7\n"


def test_the_comparison_with_a_bare_loop_runs_on_a_cpu(gpu_speed):
    found = gpu_speed.measure("cpu", clients=100, epochs=1, turns=1)
    assert found["over_bare"] > 0
    assert found["waits_per_step"] == found["device_memory"] == 0


def test_waits_are_counted_by_the_warnings_of_torch(gpu_speed):
    def work() -> None:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert gpu_speed.count_waits(work, torch.device("cpu")) == 3
