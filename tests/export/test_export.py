"""`pfl-export`: the files, and a model in plain torch."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from pfl_lightning.algorithms import FedPer, KNNPer
from pfl_lightning.cli import export
from pfl_lightning.export import onnx_file
from pfl_lightning.export.export import best_client, export_client, export_global
from pfl_lightning.export.predictor import NeighbourVote
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.saved import open_toy_run, save_toy_run
from tests.helpers.tiny_runs import fit_images


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        export.main([str(word) for word in words])
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit_images(tmp_path_factory.mktemp("export") / "run", "FedPer")


class PlainSmallCNN(nn.Module):
    """The exported net, written in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        layers = [("conv1", nn.Conv2d(1, 10, 5, padding=2)), ("pool1", nn.MaxPool2d(2)), ("relu1", nn.ReLU())]
        layers += [("conv2", nn.Conv2d(10, 20, 5)), ("pool2", nn.MaxPool2d(2)), ("relu2", nn.ReLU())]
        self.body = nn.Sequential(OrderedDict([*layers, ("flatten", nn.Flatten())]))
        self.head = nn.Linear(80, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def test_plain_torch_reaches_the_accuracy_of_the_run(run: Path, tmp_path: Path) -> None:
    """From the user's own file, the state_dict and the card: the accuracy that clients.csv has."""
    assert command(run, "--client", "cem", "--out", tmp_path, "--quiet") == 0
    card = json.loads((tmp_path / "client_2.json").read_text())
    net = PlainSmallCNN().eval()
    net.load_state_dict(load_file(tmp_path / "client_2.safetensors"), strict=True)
    with np.load(run.parent / "images" / "cem.npz") as file:
        raw, labels = file["x"], file["y"]
    with (run / "clients.csv").open() as file:
        value = float([row for row in csv.DictReader(file) if row["client"] == "2"][-1]["all_acc_before"])
    x = (torch.from_numpy(raw).float() - card["inputs"]["shift"][0]) * card["inputs"]["scale"][0]
    hits = (net(x[:, None]).argmax(1).numpy() == labels).nonzero()[0]
    from pfl_lightning.cli.saved_run import open_run

    saved = open_run(run)
    first = int(saved.loop.data.samples.owners.tolist().index(2))  # rows of one client are together
    test = saved.loop.data.test_indices(2).numpy() - first
    assert np.isin(test, hits).mean() == value
    assert card["results"]["acc_before"] == value


def test_the_card_says_where_the_model_comes_from(run: Path, tmp_path: Path) -> None:
    assert command(run, "--client", 0, 1, "--out", tmp_path, "--quiet") == 0
    names = [f"client_{client}.{kind}" for client in (0, 1) for kind in ("json", "md", "safetensors")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    card = json.loads((tmp_path / "client_0.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert card["method"] == "FedPer"
    assert (card["round"], card["client"], card["name"], card["net"]) == (2, 0, "ann", "SmallCNN")
    assert card["labels"] == ["0", "1", "2"]
    assert card["sha256"]["global_model"] == summary["model_sha256"]
    content = (tmp_path / "client_0.safetensors").read_bytes()
    assert card["sha256"]["safetensors"] == hashlib.sha256(content).hexdigest()
    assert card["config"]["algorithm"]["class_path"] == "pfl_lightning.algorithms.FedPer"
    text = (tmp_path / "client_0.md").read_text()
    assert "| acc_before |" in text
    assert card["sha256"]["safetensors"] in text
    assert str(tmp_path) not in text


def test_all_global_and_best_are_written_and_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(run, "--all", "--global", "--best", "--out", tmp_path, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["clients"] == [0, 1, 2, 3]
    assert {Path(path).name for path in told["files"]} == {path.name for path in tmp_path.iterdir()}
    summary = json.loads((run / "summary.json").read_text())
    card = json.loads((tmp_path / "global.json").read_text())
    assert card["results"]["global_acc_pooled"] == summary["last"]["all_global_acc_pooled"]


def test_the_best_client_has_the_best_accuracy_before_training(tmp_path: Path) -> None:
    evaluation = save_toy_run(tmp_path, FedPer()).evaluate()
    assert best_client(open_toy_run(tmp_path, FedPer())) == int(evaluation[:, 0, 0].argmax())


def test_the_samples_that_vote_are_exported_too(tmp_path: Path) -> None:
    save_toy_run(tmp_path, KNNPer(k=3, lam=0.5))
    run = open_toy_run(tmp_path, KNNPer(k=3, lam=0.5))
    export_client(run, 3, tmp_path / "models")
    tensors = load_file(tmp_path / "models/client_3.safetensors")
    assert tensors["features"].shape == (30, 8)
    assert tensors["votes"].shape == (30, 3)
    card = json.loads((tmp_path / "models/client_3.json").read_text())
    assert card["outputs"] == "log-probabilities of 3 classes"
    vote, predictor = card["vote"], run.predictor(3)
    x = run.loop.data.samples.x[run.loop.data.test_indices(3)]
    net = cast(NeighbourVote, predictor.model).net
    query = net.get_submodule("body")(predictor.inputs(x))
    nearest = (query[:, None] - tensors["features"]).square().sum(2).topk(vote["k"], largest=False)
    votes = ((-nearest.values / vote["scale"]).softmax(1)[..., None] * tensors["votes"][nearest.indices]).sum(1)
    by_rule = vote["weight"] * votes + (1 - vote["weight"]) * net.get_submodule("head")(query).softmax(1)
    torch.testing.assert_close(by_rule.log(), predictor(x))
    export_global(run, tmp_path / "models")
    assert "features" not in load_file(tmp_path / "models/global.safetensors")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "client: missing; use --client NUMBER, --all, --global or --best"),
        (["--client", "9"], "client: 9 is not in"),
        (["--client", "0", "--finetuned"], "finetuned: the run has loop.finetune_epochs 0"),
        (["--clients", "0"], "see pfl-export --help"),
    ],
)
def test_mistakes_are_one_line(run: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert command(run, *words) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("pfl-export: error: ")
    assert line in told


def test_onnx_without_its_packages_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    present = onnx_file.find_spec
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxruntime" else present(name))
    with pytest.raises(ConfigError, match=r"onnx: onnxruntime missing; install with: pip install"):
        onnx_file.require_onnx()


def test_help_has_examples_and_needs_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    text: Any = capsys.readouterr().out
    assert "pfl-export runs/fedper --client 17" in text
    assert "Exit codes: 0 done" in text
