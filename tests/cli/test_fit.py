"""The command as a person uses it: a run, the files it leaves, Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.cli.fit import run
from pfl_lightning.cli.parser import build_parser, parse
from tests.helpers.forked_fit import ForkedFit

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs/fedobp_fashion10k.yaml")
SMALL = [
    "--config", CONFIG, "--data.num_clients", "6", "--data.partition", "IID", "--task.net", "MLP",
    "--task.net.hidden", "[4]", "--loop.rounds", "3", "--loop.local_epochs", "1", "--loop.participation", "0.5",
    "--loop.eval_every", "2", "--loop.batch_size", "256",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Runs go to a directory of the test's own; sys.path is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def summary(path: Path) -> dict:
    return json.loads((path / "summary.json").read_text())


def test_a_run_leaves_config_metrics_summary_and_events(tmp_path, capfd):
    assert run([*SMALL, "--run_dir", "here", "--seed", "7", "--fabric.devices", "2"]) == 0
    here = tmp_path / "here"
    config = yaml.safe_load((here / "config.yaml").read_text())
    assert config["seed"] == 7
    assert config["algorithm"]["init_args"]["quantile"] == 0.995
    rows = list(csv.DictReader((here / "metrics.csv").open()))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    wanted = (
        "round seconds train_loss acc_before acc_after acc_before_pooled acc_after_pooled acc_before_worst10 "
        "personal_share up_bytes down_bytes all_acc_before all_acc_before_pooled all_acc_after all_global_acc"
    )
    assert set(wanted.split()) <= set(rows[0])
    assert [bool(row["all_acc_before"]) for row in rows] == [False, True, True]
    told = summary(here)
    assert (told["algorithm"], told["data"], told["seed"], told["rounds"]) == ("FedOBP", "Fashion10k", 7, 3)
    assert told["world_size"] == 2
    assert told["num_parameters"] == 784 * 4 + 4 + 4 * 10 + 10
    assert len(told["model_sha256"]) == len(told["clients_sha256"]) == 64
    assert told["samples_per_second"] > 0
    assert len(told["phase_seconds"]) == len(told["peak_memory"]) == told["world_size"]
    for phases, memory in zip(told["phase_seconds"], told["peak_memory"], strict=True):
        assert {"fit", "download", "test", "upload", "aggregate"} <= set(phases)
        assert all(seconds >= 0 for seconds in phases.values())
        assert memory > 10**8, "bytes, and torch alone takes more"
    # the seconds are those of rank 0; others may wait for it in a round that it has not begun
    assert 0 < sum(told["phase_seconds"][0].values()) <= told["seconds"]
    assert told["last"]["acc_before"] == float(rows[-1]["acc_before"])
    assert told["best"]["acc_after"] == max(float(row["acc_after"]) for row in rows)
    assert {"acc_before", "acc_after"} <= set(told["best_per_client_visits"])
    assert told["version"]
    assert "git_commit" in told
    assert told["command"].startswith("pfl-fit --config")
    events = EventAccumulator(str(here)).Reload()
    assert {"accuracy/before", "accuracy/after", "loss/train", "personal_share/total"} <= set(events.Tags()["scalars"])
    assert not any("hp_metric" in tag for tag in events.Tags()["scalars"])
    assert events.Tags()["images"] == ["data/partition"]
    out = capfd.readouterr().out
    assert "plain global model" in out
    assert "tensorboard --logdir" in out


def test_the_resolved_config_runs_again_to_the_same_bits(tmp_path):
    assert run([*SMALL, "--run_dir", "one", "--fabric.devices", "1"]) == 0
    again = ["--config", "one/config.yaml", "--run_dir", "two", "--fabric.devices", "3", "--store.memory", "0"]
    assert run(again) == 0
    for key in ("model_sha256", "clients_sha256", "last", "best_per_client_visits"):
        assert summary(tmp_path / "one")[key] == summary(tmp_path / "two")[key]


def test_a_saved_partition_gives_the_same_clients(tmp_path):
    small = [*SMALL, "--loop.rounds", "1", "--fabric.devices", "1"]
    assert run([*small, "--run_dir", "one"]) == 0
    saved = ["--data.partition", "SavedPartition", "--data.partition.path", "one/partition.safetensors"]
    assert run([*small, *saved, "--run_dir", "two"]) == 0
    assert summary(tmp_path / "one")["model_sha256"] == summary(tmp_path / "two")["model_sha256"]


def test_runs_get_directories_of_their_own(tmp_path):
    small = [*SMALL, "--loop.rounds", "1", "--fabric.devices", "1"]
    assert run(small) == run(small) == 0
    runs = sorted((tmp_path / "runs/fedobp_fashion10k").iterdir())
    assert len(runs) == 2
    assert all((path / "summary.json").exists() for path in runs)


OWN = '''
from dataclasses import dataclass
from pfl_lightning.algorithms import FedAvg

@dataclass
class Careful(FedAvg):
    """Moves the global model only a part of the way."""

    step: float = 0.5
    """How far."""

    def aggregate(self, server, uploads):
        old = server.vector.clone()
        super().aggregate(server, uploads)
        server.vector.lerp_(old, 1 - self.step)
'''


def test_an_algorithm_of_ones_own_runs_from_yaml(tmp_path):
    (tmp_path / "mine_of_test.py").write_text(OWN)
    (tmp_path / "mine.yaml").write_text("algorithm:\n  class_path: mine_of_test.Careful\n  init_args:\n    step: 0.0\n")
    small = [word for word in SMALL if word not in ("--config", CONFIG)]
    assert run(["--config", "mine.yaml", *small, "--run_dir", "mine", "--fabric.devices", "2"]) == 0
    assert summary(tmp_path / "mine")["algorithm"] == "Careful"
    assert (
        run(["--config", "mine.yaml", *small, "--run_dir", "next", "--loop.rounds", "1", "--fabric.devices", "1"]) == 0
    )
    assert summary(tmp_path / "mine")["model_sha256"] == summary(tmp_path / "next")["model_sha256"], "step 0: no move"


def test_an_unwritable_run_dir_is_refused(capfd):
    assert run([*SMALL, "--run_dir", "/proc/none/x"]) == 2
    assert capfd.readouterr().err.startswith("pfl-fit: error: run_dir: /proc/none/x cannot be created: /proc: ")


def test_a_net_that_does_not_fit_is_refused_on_all_ranks_with_one_line(tmp_path, capfd):
    words = ["--task.net", "ResNet18", "--algorithm.scope", "classifier", "--loop.batch_size", "0"]
    assert run([*SMALL, *words]) == 2
    (tmp_path / "flat_of_test.py").write_text(
        "from pfl_lightning.data import DataSpec, Fashion10k\n"
        "class Tiny(Fashion10k):\n    spec = DataSpec((1, 8, 8), 10)\n"
        "    def load(self):\n        whole = super().load()\n        return whole._replace(x=whole.x[:, :8, :8])\n"
    )
    capfd.readouterr()
    assert run([*SMALL, "--task.net", "CNN", "--data", "flat_of_test.Tiny", "--fabric.devices", "2"]) == 2
    err = capfd.readouterr().err
    assert err == "pfl-fit: error: task.net: CNN needs images of at least 16x16, the data has 8x8\n"
    assert not (tmp_path / "runs").exists()


def test_a_diverged_client_ends_the_run_with_one_line(tmp_path, capfd):
    assert run([*SMALL, "--task.optimizer.lr", "1e30", "--fabric.devices", "2", "--run_dir", "lost"]) == 1
    err = capfd.readouterr().err
    assert "diverged in round 1: " in err
    assert err.count("\n") == 1
    assert (tmp_path / "lost/config.yaml").exists()


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The command in an interpreter of its own, which has imported nothing."""
    code = "from pfl_lightning.cli.fit import main; main()"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=env) as process:
        yield process


@pytest.mark.parametrize(("devices", "start"), [("1", started), ("2", ForkedFit)], ids=["1", "2"])
def test_ctrl_c_ends_all_ranks_and_keeps_whole_rounds(devices, start, tmp_path):
    """The signal goes to the first process only, as `kill -INT` sends it; it must reach every rank."""
    with start([*SMALL, "--loop.rounds", "100000", "--fabric.devices", devices, "--run_dir", "cut"]) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("[") and "all" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()  # ends when every rank has closed its end
        assert process.wait() == 130
    assert "Interrupted in round" in rest, (lines, rest)
    rows = (tmp_path / "cut/metrics.csv").read_text().splitlines()
    assert len(rows) >= 3
    assert len({row.count(",") for row in rows}) == 1
    assert not (tmp_path / "cut/summary.json").exists()


def test_a_class_has_its_own_defaults_and_none_of_the_default_class(tmp_path):
    """Polynomial has 10 clients and a fifth for tests, whatever Fashion10k has; Regression a net for numbers."""
    config = tmp_path / "numbers.yaml"
    config.write_text("task: Regression\ndata:\n  class_path: Polynomial\n  init_args:\n    points: 500\n")
    for words in (["--data", "Polynomial", "--data.points=500", "--task=Regression"], ["--config", str(config)]):
        found = parse(build_parser(), ["--algorithm", "FedAvg", *words])
        assert (found.data.init_args.num_clients, found.data.init_args.test_share) == (10, 0.2)
        assert found.data.init_args.points == 500
        assert found.task.init_args.net.class_path == "pfl_lightning.nets.MLP"
        assert found.task.init_args.optimizer.class_path == "torch.optim.Adam"
