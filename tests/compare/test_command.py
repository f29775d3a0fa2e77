"""The command itself, with real configs and, in one process, real runs."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import yaml

from pfl_lightning.cli import fit
from pfl_lightning.cli.compare import parse_options, run
from pfl_lightning.cli.compare_experiment import experiment_of
from pfl_lightning.cli.compare_resolver import ParserResolver
from pfl_lightning.cli.parser import build_parser, parse
from pfl_lightning.cli.run_lock import RunLock
from pfl_lightning.compare import children
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.experiment_file import experiment_from
from pfl_lightning.compare.run_folder import text_identity
from pfl_lightning.compare.runner import Stopped
from pfl_lightning.foundation.signals import StopSignals

ROOT = Path(__file__).parents[2]
TINY = {
    "data": {"class_path": "Fashion10k", "init_args": {"num_clients": 5, "partition": "IID"}},
    "task": {"class_path": "Classification", "init_args": {"net": {"class_path": "MLP", "init_args": {"hidden": [4]}}}},
    "loop": {"rounds": 1, "participation": 0.4, "batch_size": 500, "eval_every": 1},
}


class InProcess:
    """`pfl-fit` without a process of its own: its import alone would take seconds."""

    started: list[list[str]]

    def __init__(self, command, log, env):
        type(self).started.append(command[3:])
        self._code = fit.run(command[3:])

    def poll(self):
        return self._code

    def interrupt(self):
        pass

    kill = interrupt

    def complaint(self):
        return "see above"


@pytest.fixture(autouse=True)
def _tidy(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(InProcess, "started", [], raising=False)
    monkeypatch.setattr(children, "FitProcess", InProcess)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))


def test_a_comparison_from_start_to_end(tmp_path, capsys):
    (tmp_path / "toy.yaml").write_text(
        "{base: tiny.yaml, methods: {FedAvg: , FedPAC: {algorithm.head_lr: null}}, seeds: [3], controls: [Local]}"
    )
    assert run(["toy.yaml", "--jobs", "1"]) == 0
    assert len(InProcess.started) == 3
    out = tmp_path / "runs/compare/toy"
    first = {path.name: path.read_bytes() for path in out.glob("table.*")}
    assert set(first) == {"table.md", "table.csv", "table.tex"}
    assert capsys.readouterr().out.endswith(first["table.md"].decode())
    assert "| FedAvg | before |" in first["table.md"].decode()
    assert len(list((out / "cells").glob("*.json"))) == 3

    for index, path in enumerate(sorted((out / "runs").iterdir())):  # names mean nothing
        path.rename(path.with_name(f"moved-{index}"))
    assert run(["toy.yaml"]) == 0
    assert len(InProcess.started) == 3
    assert {path.name: path.read_bytes() for path in out.glob("table.*")} == first

    capsys.readouterr()
    assert run(["toy.yaml", "--table-only", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [cell["method"] for cell in content["cells"]] == ["FedAvg", "FedPAC", "Local"]
    assert {cell["seed"] for cell in content["cells"]} == {3}
    assert {cell["config"]["data"]["init_args"]["seed"] for cell in content["cells"]} == {0}
    assert content["cells"][1]["config"]["algorithm"]["init_args"]["head_lr"] is None
    assert all(cell["run"]["model_sha256"] for cell in content["cells"])


def test_small_things_need_no_file_and_failures_are_told(tmp_path, capsys):
    words = ["--methods", "FedAvg", "PFedMe", "--config", "tiny.yaml", "--no-controls", "--jobs", "1"]
    words += ["--set", "task.optimizer.lr=1e30", "--out", "out"]
    assert run(words) == 1
    captured = capsys.readouterr()
    assert "pfl-compare: error: FedAvg, seed 0: exit code 1" in captured.err
    assert "Traceback" not in captured.err
    assert "FedAvg, seed 0: failed: exit code 1: see above" in captured.err


def test_dry_run_writes_nothing(tmp_path, capsys):
    words = ["--methods", "FedAvg", "FedPer", "--config", "tiny.yaml", "--seeds", "0", "1", "--dry-run"]
    assert run(words) == 0
    assert "8 cells, 0 finished" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in rows} == {"FedAvg", "FedPer", "Local", "FedAvg+FT"}
    assert {row["visits"] for row in rows} == {2}
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_quiet_prints_errors_only(tmp_path, capsys):
    words = ["--methods", "Local", "--config", "tiny.yaml", "--no-controls", "--quiet"]
    assert run([*words, "--table-only"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "pfl-compare: error: 1 of 1 cells are missing\n")
    assert run([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "experiment: missing; give an experiment file, or --methods with --config"),
        (["none.yaml"], "config: cannot read none.yaml"),
        (["--methods", "FedAvg"], "experiment: missing"),
        (["toy.yaml", "--methods", "FedAvg"], "--methods: does not go with an experiment file"),
        (["--methods", "FedXYZ", "--config", "tiny.yaml"], "methods.FedXYZ: algorithm: no class FedXYZ"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--set", "loop.rounds"], "--set: 'loop.rounds'"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--set", "loop.round=1"], "loop.round"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--jobs", "0"], "--jobs: 0 is not allowed"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--ranks-per-cell", "x"], "ranks"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--page", "none.md"], "page: none.md cannot be read"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--metric", "accuracy"], "report.metric: 'accuracy'"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--metric", "all_f1_before"], "the task has acc | loss"),
        (["--methods", "FedAvg", "--config", "tiny.yaml", "--nonsense"], "nonsense"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(tmp_path, capsys, words, line):
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("pfl-compare: error: ")
    assert line in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_the_caption_says_what_the_command_line_changed(tmp_path):
    """A part of an experiment must not pass for the whole, on a page least of all."""
    (tmp_path / "toy.yaml").write_text("{base: tiny.yaml, methods: [FedAvg, FedPer], caption: Mine.}")
    words = ["toy.yaml", "--rows", "FedA*", "--set", "loop.rounds=1"]
    caption = experiment_of(parse_options(words)).caption
    assert caption == "Changed on the command line: loop.rounds=1, only the rows FedA*. Mine."
    assert experiment_of(parse_options(["toy.yaml"])).caption == "Mine."


def test_the_directions_of_torchmetrics_are_known(tmp_path):
    """A hamming distance is better when it is lower, which its name does not tell."""
    config = {**TINY, "algorithm": "FedAvg", "task": {"class_path": "Classification", "init_args": {
        "net": "SmallCNN", "metrics": ["MulticlassF1Score", "MulticlassHammingDistance"]}}}  # fmt: skip
    resolver = ParserResolver()
    known, complete = resolver.directions(resolver.resolve(config, {}))
    assert known == {"acc": "higher", "loss": "lower", "f1_score": "higher", "hamming_distance": "lower"}
    assert complete


def test_a_folder_is_for_one_comparison_at_a_time(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    lock = RunLock(tmp_path / "out")
    assert run(["--methods", "Local", "--config", "tiny.yaml", "--out", "out"]) == 2
    assert "out: out is in use by process" in capsys.readouterr().err
    lock.release()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_exit_codes_of_signals(monkeypatch, number, code):
    def stopped(*_):
        raise Stopped

    monkeypatch.setattr("pfl_lightning.compare.session.Session.run", stopped)
    stop = StopSignals()
    stop.seen.append(number)
    assert run(["--methods", "Local", "--config", "tiny.yaml"], stop) == code


def test_ctrl_c_before_anything_runs(monkeypatch):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pfl_lightning.cli.compare.parse_options", pressed)
    assert run([]) == 130


def test_a_class_of_the_user_is_found_beside_the_experiment(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "own_for_compare.py").write_text(
        "from dataclasses import dataclass\nfrom pfl_lightning.algorithms import FedAvg\n\n\n"
        "@dataclass\nclass Mine(FedAvg):\n    pass\n"
    )
    (folder / "toy.yaml").write_text(
        "{base: ../tiny.yaml, methods: {Mine: {algorithm: own_for_compare.Mine}}, controls: []}"
    )
    assert run(["mine/toy.yaml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["method"] == "Mine"


def test_the_settings_of_another_class_are_not_inherited(tmp_path):
    resolver = ParserResolver()
    made = experiment_from(
        {"base": str(ROOT / "configs/fedobp_svhn_dir05.yaml"), "methods": ["APFL", "FedOBP"], "controls": []},
        tmp_path / "toy.yaml",
    )
    configs = {cell.method: cell.config for cell in Comparison(made, resolver).stage({}).cells.values()}
    assert configs["FedOBP"]["algorithm"]["init_args"]["first_visit"] == "initial"
    assert configs["APFL"]["algorithm"]["init_args"]["first_visit"] == "global"


@pytest.mark.parametrize("path", sorted((ROOT / "configs/compare").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_of_the_project_can_be_planned(path, tmp_path, monkeypatch):
    """And its cells are known again by the config.yaml that their runs leave."""
    assert f"pfl-compare {path.relative_to(ROOT)}" in path.read_text()
    monkeypatch.syspath_prepend(path.parent)  # as the command does, for own classes
    made = experiment_of(parse_options([str(path)]))
    cells = list(Comparison(made, ParserResolver()).stage({}).cells.values())
    assert len(cells) >= len(made.methods) * len(made.seeds)
    rows = cells[:: len(made.seeds)]
    for cell in {
        cell.id: cell for cell in [*rows[::8], *(row for row in rows if "e-" in json.dumps(row.config))]
    }.values():
        parser = build_parser()
        words = children.fit_command(children.write_config(cell, tmp_path), tmp_path / "run", 1)[3:]
        config = parse(parser, words)
        config.resume = None
        assert text_identity(parser.dump(config)) == cell.id


def test_help_shows_examples(capsys):
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert "pfl-compare configs/compare/first.yaml --dry-run" in text
    assert "Exit codes: 0" in text
