"""A class that is named on the command line starts from its own defaults."""

from __future__ import annotations

import re

import pytest

from pfl_lightning.cli.fit import run
from pfl_lightning.cli.layers import resolve_settings
from pfl_lightning.cli.parser import build_parser, read_command
from tests.cli.test_fit import ROOT, SMALL, _elsewhere  # noqa: F401 (a fixture)

SVHN = str(ROOT / "configs/fedobp_svhn_dir05.yaml")


def test_another_class_inherits_nothing_and_the_dropped_settings_are_named():
    command = read_command(build_parser(), ["--config", SVHN, "--algorithm", "APFL", "--algorithm.alpha", "0.25"])
    assert command.config.algorithm.init_args.alpha == 0.25
    assert command.config.algorithm.init_args.get("first_visit") != "initial"
    (dropped,) = command.dropped
    assert dropped.key == "algorithm"
    assert str(dropped).endswith("(of FedOBP; APFL starts from its own defaults)")
    assert "quantile 0.9998" in str(dropped)
    assert command.replaced == {"algorithm"}


def test_the_same_class_keeps_the_settings_of_the_config():
    for name in ("FedOBP", "fedobp", "pfl_lightning.algorithms.FedOBP"):
        command = read_command(build_parser(), ["--config", SVHN, "--algorithm", name])
        assert command.config.algorithm.init_args.quantile == 0.9998
        assert command.dropped == []
        assert command.replaced == set()


@pytest.mark.parametrize("form", ["--task.optimizer Adam", "--task.optimizer=Adam", "--task.optimizer.class_path Adam"])
def test_nested_classes_start_afresh_too(form):
    config = str(ROOT / "configs/fedobp_fashion10k.yaml")
    command = read_command(build_parser(), ["--config", config, *form.split()])
    optimizer = command.config.task.init_args.optimizer
    assert optimizer.class_path == "torch.optim.Adam"
    assert optimizer.init_args.lr == 0.001
    assert [str(dropped) for dropped in command.dropped] == [
        "lr 0.01, momentum 0.7 (of SGD; Adam starts from its own defaults)"
    ]


def test_another_task_takes_its_net_and_optimizer_along():
    config = str(ROOT / "configs/learn2pfed_load.yaml")
    command = read_command(build_parser(), ["--config", config, "--task", "Classification"])
    assert command.config.task.init_args.optimizer.class_path == "torch.optim.SGD"
    assert str(command.dropped[0]).startswith(
        "net MLP, net.hidden [], optimizer Adam, optimizer.lr 0.01 (of Forecasting"
    )


def test_options_of_the_replaced_class_are_dropped_and_later_ones_stay():
    words = ["--algorithm", "FedOBP", "--algorithm.quantile", "0.5", "--algorithm", "Ditto", "--algorithm.lam", "2"]
    found = resolve_settings(words)
    assert found.words == ["--algorithm=Ditto", "--algorithm.lam", "2"]
    assert [dropped.settings for dropped in found.dropped] == [{"quantile": "0.5"}]


def test_a_file_that_extends_another_may_share_settings_between_classes(tmp_path):
    """configs/pfedsop_cifar100.yaml takes its partition from a file that names CIFAR10."""
    (tmp_path / "base.yaml").write_text("data:\n  class_path: CIFAR10\n  init_args:\n    num_clients: 7\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nalgorithm: FedAvg\ndata:\n  class_path: SVHN\n")
    command = read_command(build_parser(), ["--config", "top.yaml"])
    assert command.config.data.init_args.num_clients == 7
    assert command.dropped == []


FEDOBP = "algorithm:\n  class_path: FedOBP\n  init_args:\n    first_visit: initial\n    quantile: 0.9\n"


@pytest.mark.parametrize("second", ["algorithm: APFL\n", "extends: first.yaml\nalgorithm:\n  class_path: APFL\n"])
def test_an_algorithm_of_another_file_inherits_nothing_either(second, tmp_path):
    (tmp_path / "first.yaml").write_text(FEDOBP)
    (tmp_path / "second.yaml").write_text(second)
    files = ["second.yaml"] if "extends" in second else ["first.yaml", "second.yaml"]
    command = read_command(build_parser(), [word for file in files for word in ("--config", file)])
    assert command.config.algorithm.class_path == "pfl_lightning.algorithms.APFL"
    assert command.config.algorithm.init_args.first_visit == "global"
    (dropped,) = command.dropped
    assert dropped.settings == {"first_visit": "initial", "quantile": 0.9}
    assert command.replaced == set(), "the run is filed under the name of the second file"


def test_data_of_a_second_config_starts_afresh(tmp_path):
    (tmp_path / "first.yaml").write_text("algorithm: FedAvg\ndata:\n  class_path: CIFAR10\n  num_clients: 7\n")
    (tmp_path / "second.yaml").write_text("data: SVHN\n")
    command = read_command(build_parser(), ["--config", "first.yaml", "--config", "second.yaml"])
    assert command.config.data.init_args.num_clients == 100
    assert [str(dropped) for dropped in command.dropped] == [
        "num_clients 7 (of CIFAR10; SVHN starts from its own defaults)"
    ]


def test_a_run_with_another_algorithm_is_filed_under_its_name_and_says_what_was_dropped(tmp_path, capfd):
    words = [*SMALL, "--loop.rounds", "1", "--fabric.devices", "1"]
    assert run([*words, "--algorithm", "APFL"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert re.search(r"dropped algorithm .*quantile 0\.995.* \(of FedOBP; APFL starts from its own defaults\)", out)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["apfl"]
    assert run([*words, "--algorithm", "FedOBP"]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["apfl", "fedobp_fashion10k"]
