"""A user's own classes are found beside the config, wherever the command is started and resumed."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest

from pfl_lightning.checkpoint.marker import Marker
from pfl_lightning.cli import fit
from pfl_lightning.cli.own_code import own_folders
from pfl_lightning.cli.own_digests import own_digests
from pfl_lightning.cli.saved_run import load_client
from pfl_lightning.compare.run_facts import RunFacts
from pfl_lightning.foundation.shipped import SBATCH, shipped_configs

METHOD = """
from dataclasses import dataclass
from pfl_lightning.algorithms import FedAvg

@dataclass
class BesideMethod(FedAvg):
    "FedAvg by another name."
"""
CONFIG = """
algorithm: {module}.BesideMethod
task: {{class_path: Classification, init_args: {{net: {{class_path: MLP, init_args: {{hidden: [2]}}}}}}}}
data: {{class_path: Fashion10k, init_args: {{num_clients: 5}}}}
loop: {{rounds: 1, eval_every: 0, participation: 0.2}}
fabric: {{devices: 1}}
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A working directory that is not the folder of the config."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_method_beside_the_config_trains_and_resumes_from_anywhere(elsewhere, monkeypatch, capsys):
    folder = elsewhere / "mine"
    folder.mkdir()
    (folder / "beside_method.py").write_text(METHOD)
    (folder / "base.yaml").write_text(CONFIG.format(module="beside_method"))
    (elsewhere / "top.yaml").write_text("extends: mine/base.yaml\nseed: 3\n")
    run_dir = elsewhere / "out"
    assert fit.run(["--config", "../top.yaml", "--run_dir", str(run_dir)]) == 0
    assert json.loads((run_dir / "summary.json").read_text())["algorithm"] == "BesideMethod"

    def forget() -> None:
        sys.modules.pop("beside_method")
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])

    forget()
    assert fit.run(["--resume", str(run_dir), "--loop.rounds", "2"]) == 2
    assert "add --trust" in capsys.readouterr().err, "code of a run directory needs consent"
    assert str(folder) not in sys.path
    assert fit.run(["--resume", str(run_dir), "--loop.rounds", "2", "--trust"]) == 0
    forget()
    assert load_client(run_dir, 0, trust=True) is not None


def test_a_failing_import_shows_its_cause(elsewhere, capsys):
    (elsewhere / "half_method.py").write_text("import nowhere_to_be_found\n")
    (elsewhere / "top.yaml").write_text(CONFIG.format(module="half_method"))
    assert fit.run(["--config", "../top.yaml"]) == 2
    error = capsys.readouterr().err
    assert "algorithm: importing half_method failed: half_method.py, line 1: ModuleNotFoundError" in error
    assert "nowhere_to_be_found" in error


def test_the_folder_of_the_config_comes_before_the_working_directory(elsewhere):
    (elsewhere / "top.yaml").write_text("seed: 1\n")
    assert own_folders(["--config", "../top.yaml"]) == [str(elsewhere), str(elsewhere / "here")]


def test_configs_of_the_package_are_found_by_name(elsewhere, capsys):
    assert fit.run(["--configs"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"fedobp_fashion10k", "settings/fashion10k", "compare/first"} <= set(listed) == set(shipped_configs())
    assert fit.run(["--config", "fedobp_fashion10k", "--print_config"]) == 0
    assert "quantile: 0.995" in capsys.readouterr().out
    (elsewhere / "top.yaml").write_text("extends: fedobp_fashion10k\nseed: 5\n")
    assert fit.run(["--config", "../top.yaml", "--print_config"]) == 0
    assert "seed: 5" in capsys.readouterr().out
    assert fit.run(["--config", "fedobp_fashion11k"]) == 2
    assert "; did you mean fedobp_fashion10k?" in capsys.readouterr().err
    assert fit.run(["--config", "configs/compare/frist.yaml"]) == 2
    assert "; did you mean compare/first?" in capsys.readouterr().err
    assert fit.run(["--config", "nothing_like_it"]) == 2
    assert "pfl-fit --configs lists the configs of the package" in capsys.readouterr().err


def test_the_script_for_slurm_is_part_of_the_package(capsys):
    assert fit.run(["--sbatch"]) == 0
    assert Path(capsys.readouterr().out.strip()) == SBATCH
    assert "exec srun" in SBATCH.read_text()


def test_a_run_notes_the_code_it_was_started_with(tmp_path, monkeypatch):
    """Code that changes before a run goes on must not pass for the code of the whole run."""
    file, config = tmp_path / "own_noted.py", "algorithm: {class_path: own_noted.Mine}"
    file.write_text("class Mine: pass")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_noted")
    first = own_digests(config)
    Marker(config, sources=first).write(tmp_path)
    file.write_text("class Mine: lr = 2")
    assert own_digests(config) != first
    assert own_digests(config, resumed=tmp_path) == first
    assert not own_digests("algorithm: {class_path: pfl_lightning.algorithms.FedAvg}")


def test_a_run_notes_the_weights_it_was_started_with(tmp_path, monkeypatch):
    """Other weights under the same name make other results of the same config."""
    monkeypatch.chdir(tmp_path)
    config = "task: {class_path: pfl_lightning.tasks.Classification, init_args: {weights: start.safetensors}}"
    Path("start.safetensors").write_bytes(b"first")
    first = own_digests(config)
    assert first == {"start.safetensors": hashlib.sha256(b"first").hexdigest()}
    facts = RunFacts({}, [], sources=first)
    assert not facts.changed_sources
    Path("start.safetensors").write_bytes(b"second")
    assert facts.changed_sources == ["start.safetensors"]
    assert not own_digests(config.replace("start.safetensors", "IMAGENET1K_V1"))
