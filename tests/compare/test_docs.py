"""The commands and files that docs/compare.md shows can be planned as printed."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from pfl_lightning.cli.compare import build_compare_parser, run
from pfl_lightning.cli.compare_resolver import ParserResolver
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.controls import COLLABORATION_OFF
from pfl_lightning.compare.experiment_file import KEYS, experiment_from
from pfl_lightning.compare.file_methods import REPORT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/compare.md").read_text()
COMMANDS = [line.partition("#")[0] for line in PAGE.splitlines() if line.startswith("pfl-compare ")]
FILES = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_accepted(command):
    options = build_compare_parser().parse_args(shlex.split(command)[1:])
    assert (ROOT / (options.experiment or options.config)).is_file()


def test_the_first_command_runs_as_printed(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run(shlex.split(COMMANDS[0])[1:]) == 0
    assert "10 cells" in capsys.readouterr().out


def test_the_file_has_the_cells_that_it_describes(monkeypatch):
    monkeypatch.chdir(ROOT)
    made = experiment_from(yaml.safe_load(FILES[0]), Path("docs/example.yaml"))
    stage = Comparison(made, ParserResolver()).stage({})
    rows = {"FedAvg", "FedOBP", "FedOBP, Fisher", "Ditto", "Ditto, alone", "Local", "FedAvg+FT"}
    assert {entry.method for entry in stage.entries} == rows
    assert len(stage.cells) == len(rows) * 2 * 3
    fisher = next(cell for cell in stage.cells.values() if cell.method == "FedOBP, Fisher")
    assert fisher.config["algorithm"]["init_args"]["quantile"] == 0.995
    assert fisher.config["algorithm"]["init_args"]["score"] == "fisher"


def test_the_search_is_an_experiment(monkeypatch):
    monkeypatch.chdir(ROOT)
    content = yaml.safe_load(FILES[1])
    content["search"]["budget"] = 2
    made = experiment_from(content, Path("docs/example.yaml"))
    assert made.search
    assert set(made.search.space_of("FedOBP")) == {"algorithm.quantile", "task.optimizer.lr"}
    stage = Comparison(made, ParserResolver()).stage({})
    assert len(stage.cells) == 4 * 2
    assert {cell.config["data"]["init_args"]["validation_share"] for cell in stage.cells.values()} == {0.2}


def test_every_key_is_described():
    for key in KEYS:
        assert f"| `{key}" in PAGE, key
    for key in REPORT:
        assert f"`report.{key}`" in PAGE
    for name in COLLABORATION_OFF:
        assert name in PAGE


def test_every_option_of_the_page_exists():
    known = {option for action in build_compare_parser()._actions for option in action.option_strings}
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE):
        assert option in known | {"--partition", "--time"}, option
