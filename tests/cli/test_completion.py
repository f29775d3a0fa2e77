"""The words that a shell offers. argcomplete itself is optional, so these tests ask the parser that it reads."""

from __future__ import annotations

import pytest

from pfl_lightning.cli.completion import completing_parser


def test_settings_of_the_chosen_class_and_options_of_the_command_are_offered() -> None:
    parser = completing_parser("pfl-fit --quiet --algorithm FedOBP --algorithm.qu")
    offered = {option for action in parser._actions for option in action.option_strings}
    assert {"--algorithm.quantile", "--task.optimizer.lr", "--loop.rounds", "--quiet", "--configs"} <= offered
    assert "--algorithm.lam" not in offered
    assert "algorithm" in parser.get_defaults()  # argcomplete starts from it


def test_values_are_names_of_classes_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_TYPE", "9")
    completers = {action.dest: action.completer for action in completing_parser("pfl-fit --algorithm 'Fe")._actions}
    assert "FedOBP" in completers["algorithm"](prefix="Fe")
    assert "ResNet18" in completers["task.net"](prefix="")
    assert list(completers["loop.rounds"](prefix="")) == []
