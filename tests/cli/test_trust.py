"""Code that somebody else's run directory names is not run without consent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_lightning.checkpoint.differences import refuse_differences
from pfl_lightning.checkpoint.manifest import list_rounds, manifest_path
from pfl_lightning.checkpoint.marker import Marker
from pfl_lightning.checkpoint.sealed import digest
from pfl_lightning.cli import export, fit, report
from pfl_lightning.cli.fit import run
from pfl_lightning.cli.parser import build_parser, complete, parse
from pfl_lightning.cli.trust import outside_names
from pfl_lightning.foundation.errors import ConfigError
from tests.cli.test_fit import SMALL, _elsewhere, summary  # noqa: F401 (a fixture)
from tests.helpers.forked_fit import ForkedFit

JOB = [*SMALL, "--loop.rounds", "1", "--fabric.devices", "1"]
EVIL = """
from pathlib import Path
from pfl_lightning.algorithms import FedOBP
from pfl_lightning.nets import MLP
Path("executed").touch()
class Algorithm(FedOBP): pass
class Net(MLP): pass
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose directory had the name `shared`."""
    path = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert run([*JOB, "--run_dir", "shared"]) == 0
    return path / "shared"


@pytest.fixture
def shared(trained, tmp_path):
    """A run directory under the current directory, with a file of code in it."""
    shutil.copytree(trained, tmp_path / "shared")
    (tmp_path / "shared/evil.py").write_text(EVIL)
    sys.modules.pop("shared.evil", None)
    sys.modules.pop("shared", None)
    return tmp_path / "shared"


def change_config(run_dir: Path, changes: dict[str, Any]) -> None:
    """Change the config inside all manifests of a run, with a checksum that fits."""
    for round_ in list_rounds(run_dir / "checkpoints"):
        path = manifest_path(run_dir / "checkpoints", round_)
        content = json.loads(path.read_text())["content"]
        config = yaml.safe_load(content["config"])
        for key, value in changes.items():
            *above, last = key.split(".")
            place = config
            for name in above:
                place = place[name]
            place[last] = value
        content["config"] = yaml.safe_dump(config)
        path.write_text(json.dumps({"sha256": digest(content), "content": content}))


WAYS: dict[str, dict[str, Any]] = {
    "class": {"algorithm.class_path": "shared.evil.Algorithm"},
    "nested class": {"task.init_args.net": {"class_path": "shared.evil.Net"}},
    "import path": {"task.init_args.net": "shared.evil.Net"},
    "text with YAML": {"algorithm": "{class_path: shared.evil.Algorithm}"},
    "import path in quotes": {"task.init_args.net": "'shared.evil.Net' "},
    "text in text": {"task.init_args.net": "{class_path: '{class_path: shared.evil.Net}'}"},
    "config file": {"config": "shared/evil.yaml"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", [["--resume", "shared"], [*JOB, "--resume", "auto", "--run_dir", "shared"]])
def test_code_in_a_run_directory_is_not_run(way, command, shared, tmp_path, capfd):
    (shared / "evil.yaml").write_text("algorithm:\n  class_path: shared.evil.Algorithm\n")
    change_config(shared, WAYS[way])
    capfd.readouterr()
    assert run([*command, "--loop.rounds", "2"]) == 2
    err = capfd.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert err.count("\n") == 1
    if command[0] == "--resume" and way not in ("text in text", "config file"):
        assert err.startswith("pfl-fit: error: resume: the run in shared uses shared.evil.")
        assert err.endswith(" from outside pfl_lightning; to run this code, check that you trust the directory and add "
                            "--trust\n")  # fmt: skip


def test_a_file_in_a_run_directory_does_not_replace_a_package(shared, tmp_path, monkeypatch):
    """A command inside of the directory: files there are named as packages that are imported late."""
    for name in ("tensorboard", "onnx", "matplotlib", "pandas", "torchvision"):
        (shared / f"{name}.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'executed')!r}).touch()\n")
    monkeypatch.chdir(shared)
    script = "from pfl_lightning.cli.fit import main; main()"
    command = [sys.executable, "-P", "-c", script, "--resume", ".", "--loop.rounds", "2"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert not (tmp_path / "executed").exists()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (fit.main, ["--resume", ".", "--loop.rounds", "2"]),
        (fit.main, [*JOB, "--resume", "auto", "--run_dir", ".", "--loop.rounds", "2"]),
        (export.main, [".", "--global"]),
        (report.main, ["."]),
    ],
    ids=["pfl-fit", "pfl-fit auto", "pfl-export", "pfl-report"],
)
def test_no_command_imports_from_a_run_directory(main, words, shared, monkeypatch):
    """Folders are added to the path at its front, so none may be. Packages that are imported late are not there yet."""
    monkeypatch.chdir(shared)

    def imported(words: list[str]) -> None:
        before = list(sys.path)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tensorboard", "onnx", "pandas")]:
            del sys.modules[name]
        try:
            main(words)
        finally:
            print("folders:", set(sys.path) - set(before))

    for name in ("tensorboard", "onnx", "pandas"):
        (shared / f"{name}.py").write_text("print('executed')\n")
    with ForkedFit(words, main=imported) as process:
        out = process.communicate()[0]
    assert process.returncode == 0, out
    assert "executed" not in out
    assert "folders: set()" in out


FUNCTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "a function that writes files": (
        "pfl_lightning.foundation.atomic_files.write_text",
        {"path": "executed", "text": "evil"},
    ),
    "a class that writes files": ("pfl_lightning.monitor.tables.MetricsTable", {"path": "executed", "columns": ["x"]}),
    "the command itself": ("pfl_lightning.cli.fit.run", {"argv": ["--resume", "other", "--trust"]}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("way", ["net", "dataset", "transform"])
def test_code_of_the_package_is_called_only_if_a_config_is_meant_to_name_it(name, way, shared, tmp_path, capfd):
    path, settings = FUNCTIONS[name]
    entry = {"class_path": path, "init_args": settings}
    if way == "net":
        change_config(shared, {"task.init_args.net": entry})
    elif way == "dataset":
        change_config(shared, {"data": {"class_path": "FromDataset", "init_args": {"dataset": entry}}})
    else:
        change_config(shared, {"data.init_args.transforms": [entry]})
    capfd.readouterr()
    assert run(["--resume", "shared", "--loop.rounds", "2"]) == 2
    assert f"resume: the run in shared uses {path}, which no setting should name" in capfd.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert run(["--resume", "shared", "--loop.rounds", "2", "--trust"]) == 2


def test_code_in_the_marker_is_not_run(shared, tmp_path, capfd):
    """A run that has no checkpoint yet: its config is in run.json."""
    config = yaml.safe_load((shared / "config.yaml").read_text())
    config["algorithm"]["class_path"] = "shared.evil.Algorithm"
    for path in [*(shared / "checkpoints").iterdir(), shared / "summary.json"]:
        path.unlink()
    Marker(yaml.safe_dump(config)).write(shared)
    capfd.readouterr()
    assert run([*JOB, "--resume", "auto", "--run_dir", "shared"]) == 2
    assert "started with another config: algorithm (was shared.evil.Algorithm" in capfd.readouterr().err
    assert not (tmp_path / "executed").exists()


HIDDEN: dict[str, dict[str, Any]] = {
    "a setting that may differ": {"callbacks": [{"class_path": "shared.evil.Algorithm"}]},
    "a name behind another": {
        "algorithm": {"class_path": "shared.evil.Algorithm", "init_args": "pfl_lightning.algorithms.FedOBP"}
    },
}


@pytest.mark.parametrize("way", HIDDEN)
def test_code_that_a_comparison_of_configs_does_not_see_is_not_run(way, tmp_path, monkeypatch):
    """The stored config lacks a setting, as that of an earlier version does, so defaults are added before comparing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/evil.py").write_text(EVIL)
    sys.modules.pop("shared.evil", None)
    sys.modules.pop("shared", None)
    parser = build_parser()
    now = parser.dump(parse(parser, ["--algorithm", "FedOBP", "--task.net", "MLP"]))
    old = yaml.safe_load(now) | HIDDEN[way]
    del old["loop"]["channels_last"]
    with suppress(ConfigError):
        refuse_differences(yaml.safe_dump(old), now, partial(complete, parser))
    assert not (tmp_path / "executed").exists()


OWN = "from pfl_lightning.algorithms import FedAvg\nclass Mine(FedAvg): pass\n"


def test_a_class_of_ones_own_needs_trust_or_ones_own_command(tmp_path, capfd):
    (tmp_path / "mine_of_trust_test.py").write_text(OWN)
    small = [word for word in JOB if not word.endswith("fedobp_fashion10k.yaml") and word != "--config"]
    own = [*small, "--algorithm", "mine_of_trust_test.Mine"]
    assert run([*own, "--run_dir", "here"]) == 0
    capfd.readouterr()
    assert run(["--resume", "here", "--loop.rounds", "2"]) == 2
    assert "the run in here uses mine_of_trust_test.Mine from outside pfl_lightning" in capfd.readouterr().err
    assert run(["--resume", "here", "--loop.rounds", "2", "--trust"]) == 0
    assert run([*own, "--resume", "auto", "--run_dir", "here", "--loop.rounds", "3"]) == 0
    assert summary(tmp_path / "here")["rounds"] == 3
    assert "trust: false" in (tmp_path / "here/config.yaml").read_text(), "consent belongs to one command"


def test_names_that_need_consent(tmp_path):
    config = {
        "algorithm": {"class_path": "pfl_lightning.algorithms.FedOBP", "init_args": {"quantile": 0.5}},
        "task": {"class_path": "Classification", "init_args": {"optimizer": {"class_path": "torch.optim.SGD"}}},
        "data": {"init_args": {"root": "no_such_module.csv", "source": "/data/os.path", "names": ["a", "os.getcwd"]}},
    }
    assert list(outside_names(config)) == ["os.getcwd"]
    for name in (
        "pfl_lightning.cli.origin.subprocess.Popen", "pfl_lightning.cli.origin.subprocess", "torch.hub.load",
        "torchvision.datasets.LSUN", "timm.create_model", "torch.optimevil.X", "pfl_lightning_evil.X",
        "pfl_lightning.algorithms.NoSuchClass", "__main__.X", "pfl_lightning.cli.fit.run",
        "pfl_lightning.cli.run_lock.RunLock", "torch.nn.utils.skip_init", "torchvision.models.torch",
    ):  # fmt: skip
        assert list(outside_names({"class_path": name})) == [name]


def test_names_that_need_no_consent():
    for name in (
        "pfl_lightning.nets.CNN", "pfl_lightning.tasks.Classification", "pfl_lightning.data.Dirichlet",
        "pfl_lightning.callback.EarlyStopping", "torch.optim.Adam", "torch.nn.ReLU", "torchvision.models.resnet18",
        "torchvision.models.ResNet", "torchvision.ops.MLP", "torchvision.transforms.v2.RandomHorizontalFlip",
        "torchvision.transforms.Compose", "torchmetrics.classification.MulticlassF1Score",
        "lightning.pytorch.loggers.CSVLogger",
    ):  # fmt: skip
        assert list(outside_names({"class_path": name})) == [], name
