"""Code of people who never saw this project: modules and nets without types, and one line for each mistake."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from pfl_lightning.cli.fit import run

CODE = """
import torch
from lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import MeanMetric

from pfl_lightning.nets import MLP
from pfl_lightning.tasks import Classification


class Lit(LightningModule):
    def __init__(self, in_features, num_classes, lr=0.1):
        super().__init__()
        self.layer, self.lr = nn.Linear(in_features, num_classes), lr

    def forward(self, x):
        return self.layer(x.flatten(1))

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1]) * self.factor()

    def factor(self):
        return 1.0

    def test_step(self, batch, batch_idx):
        self.log("acc", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Needy(Lit):
    def __init__(self, in_features, num_classes, temperature):
        super().__init__(in_features, num_classes)


class NotANumber(Lit):
    def factor(self):
        return float("nan")


class BrokenSetup(Lit):
    def setup(self, stage):
        {}["colour"]


class BrokenHook(Lit):
    def on_train_epoch_end(self):
        {}["colour"]


class Logging(Lit):
    def training_step(self, batch, batch_idx):
        self.logger.experiment.add_scalar("x", 1.0)


class Listing(Lit):
    def __init__(self, in_features, num_classes, metrics):
        super().__init__(in_features, num_classes)
        assert metrics == ["recall"], metrics


class Early(Classification):
    def __init__(self):
        super().__init__(net=MLP, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        self.temperature = nn.Linear(1, 1)


class Narrow(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(10, num_classes))


class TooFew(nn.Sequential):
    def __init__(self, in_features):
        super().__init__(nn.Flatten(), nn.Linear(in_features, 3))


class NeedyNet(nn.Linear):
    def __init__(self, width, num_classes):
        super().__init__(width, num_classes)


class Failing(MeanMetric):
    def compute(self):
        {}["colour"]

    def update(self, outputs, targets):
        super().update(outputs)


class Unmade(MeanMetric):
    def __init__(self):
        {}["colour"]


def make_net(in_features, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, num_classes))


def make_text(num_classes):
    return "net"
"""
SMALL = ["--data.num_clients", "5", "--loop.rounds", "1", "--loop.participation", "0.2", "--loop.eval_every", "0"]
MISTAKES = {
    "--task theirs.Needy": "task.temperature: missing; give it a value",
    "--task theirs.Lit --task.lrr 3": "task.lrr: Lit has no such option; use lr | ",
    "--task theirs.NotANumber": "task: NotANumber.training_step returns the loss nan for the first samples",
    "--task theirs.BrokenSetup": "task: BrokenSetup.setup fails: KeyError: 'colour'",
    "--task theirs.BrokenHook": "task: BrokenHook.on_train_epoch_end fails on a batch of 4 samples: KeyError: 'colour'",
    "--task theirs.Logging": "task: Logging.training_step fails on a batch of 4 samples: AttributeError: 'NoneType'",
    "--task.net theirs.NeedyNet": "task.net.width: missing; give it a value",
    "--task.net theirs.Narrow": "task.net: Narrow does not fit samples of shape (1, 28, 28): RuntimeError: ",
    "--task.net theirs.TooFew": "task.net: TooFew makes [3] outputs for a sample; the data needs 10",
    "--task theirs.make_net": "task: theirs.make_net is not a subclass of lightning.LightningModule; LightningTask ",
    "--task.metrics F1Score": "task.metrics.task: missing; give it on the command line or in a --config file",
    "--task.metrics BinaryAUROC": "task.metrics: BinaryAUROC fails on a batch of 4 samples: ",
    "--task.metrics MulticlassConfusionMatrix": "task: the metric confusion_matrix has several values; log one number",
    "--task.metrics theirs.Failing": "task.metrics: Failing fails on a batch of 4 samples: KeyError: 'colour'",
    "--task.metrics theirs.Unmade": "task.metrics: Unmade cannot be made: KeyError: 'colour'",
    "--task.metrics MulticlasF1": "task.metrics: no class MulticlasF1; use MulticlassF1Score | another class of ",
    "--task.metrics [torchmetrics.Nope]": "task.metrics: no class Nope in ",
    "--data theirs.Lit": "data: theirs.Lit is not a subclass of pfl_lightning.data.FederatedData; FromDataset takes ",
    "--task.net theirs.make_text": "task.net: make_text returns str; use a class or function that makes a module",
}


@pytest.fixture(autouse=True)
def _theirs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "theirs.py").write_text(CODE)
    yield
    sys.modules.pop("theirs", None)


@pytest.mark.parametrize("task", ["theirs.Lit", "{class_path: theirs.Needy, init_args: {temperature: 2}}"])
def test_parameters_need_no_types(task, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"algorithm: FedAvg\ntask: {task}\n")
    words = ["--config", "mine.yaml", "--fabric.devices", "1", *SMALL]
    assert run([*words, "--run_dir", "out"]) == 0
    assert run([*words, "--task.in_features", "784", "--run_dir", "given"]) == 0
    first, given = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("out", "given"))
    assert first["model_sha256"] == given["model_sha256"]


def test_layers_that_a_task_makes_early_depend_on_the_seed_only(tmp_path):
    models = {}
    for name, seed in {"one": 0, "two": 0, "other": 1}.items():
        torch.rand(len(models) + 1)  # whatever happened before
        words = ["--algorithm", "Local", "--task", "theirs.Early", "--seed", str(seed), "--fabric.devices", "1", *SMALL]
        assert run([*words, "--run_dir", name]) == 0
        models[name] = json.loads((tmp_path / name / "summary.json").read_text())["model_sha256"]
    assert models["one"] == models["two"] != models["other"]


def test_a_module_may_have_metrics_of_its_own(tmp_path):
    (tmp_path / "mine.yaml").write_text("algorithm: FedAvg\ntask: theirs.Listing\n")
    assert run(["--config", "mine.yaml", "--fabric.devices", "1", *SMALL, "--task.metrics", "[recall]"]) == 0


def test_metrics_have_short_names(tmp_path):
    words = ["--algorithm", "FedAvg", "--fabric.devices", "1", "--task.net", "MLP", *SMALL, "--run_dir", "out"]
    assert run([*words, "--task.metrics", "[MulticlassF1Score, {class_path: MulticlassAUROC}]"]) == 0
    header = (tmp_path / "out" / "metrics.csv").read_text().partition("\n")[0].split(",")
    assert {"f1_score_after_pooled", "auroc_after"} < {*header}
    assert "auroc_after_pooled" not in header


def test_a_function_needs_no_return_type():
    assert run(["--algorithm", "FedAvg", "--task.net", "theirs.make_net", "--fabric.devices", "1", *SMALL]) == 0


def test_the_help_of_a_module_without_types(capsys):
    assert run(["--task.help", "theirs.Needy"]) == 0
    assert "--task.temperature" in capsys.readouterr().out


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_line_and_leaves_nothing(words, tmp_path, capfd):
    before = sorted(tmp_path.rglob("*"))
    assert run(["--algorithm", "FedAvg", "--fabric.devices", "1", *SMALL, *words.split()]) == 2
    out, err = capfd.readouterr()
    assert err.startswith(f"pfl-fit: error: {MISTAKES[words]}"), err
    assert err.count("\n") == 1
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before
