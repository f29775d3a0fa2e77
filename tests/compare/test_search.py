"""Search: validation chooses, test data never does, and trials are a function of what is known."""

from __future__ import annotations

import json
import sys

import pytest

from pfl_lightning.compare.cell_json import read_cells
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.conclusion import conclude
from pfl_lightning.compare.display import Quiet
from pfl_lightning.compare.experiment import Search
from pfl_lightning.compare.run_folder import new_directory
from pfl_lightning.compare.search import propose
from pfl_lightning.compare.session import Session
from pfl_lightning.compare.trials import read_trials
from pfl_lightning.foundation.errors import ConfigError, RunError
from tests.compare.test_interrupted import Moment
from tests.helpers.comparisons import CLIENTS, ToyResolver, experiment, made_up
from tests.helpers.fake_fit import FakeFit

LIST = {"a": [1, 2, 3], "b": ["x", "y"]}
RANGE = {"lr": {"low": 0.001, "high": 0.1, "log": True, "steps": 3}}


def proposals(space, engine="random", budget=4, trials=(), method="M", column="", seed=0):
    return propose(Search({method: space}, engine, budget, seed), method, column, True, trials)


def test_random_trials_are_different_and_always_the_same():
    first = proposals(LIST)
    assert first == proposals(LIST)
    assert len({repr(point) for point in first}) == 4
    assert first != proposals(LIST, seed=1)
    assert proposals(LIST, trials=[(point, 0.5) for point in first[:1]]) == first[1:]


def test_trials_have_different_labels_and_names_that_fit_on_a_disk(tmp_path):
    names = ["a", "b" * 300]  # any value will do
    search = {"space": {"FedOBP": {"algorithm.quantile": [0.5, 0.9], "task.optimizer.lr": names}}, "engine": "grid"}
    made = experiment(methods=["FedOBP"], set={"data.validation_share": 0.2}, controls=[], search=search)
    cells = Comparison(made, ToyResolver()).stage({}).cells.values()
    assert "FedOBP, quantile=0.5, lr=a, seed 0" in {cell.label for cell in cells}
    assert len({cell.label for cell in cells}) == 4
    assert len({new_directory(cell, tmp_path).name for cell in cells}) == 4
    for cell in cells:
        new_directory(cell, tmp_path).mkdir()


def test_a_small_space_ends_early():
    assert len(proposals({"a": [1, 2]}, budget=10)) == 2
    assert len(proposals({"a": [1, 1, 1.0, True]}, budget=10)) == 3


def test_ranges_are_drawn_within_their_ends():
    values = [point["lr"] for point in proposals(RANGE, budget=200)]
    assert 0.001 <= min(values) < 0.003
    assert 0.03 < max(values) <= 0.1
    assert 60 < sum(value < 0.01 for value in values) < 140  # even on the logarithmic scale


def test_a_grid_has_every_point_once():
    assert proposals(LIST, "grid", 6)[:2] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
    assert [point["lr"] for point in proposals(RANGE, "grid")] == pytest.approx([0.001, 0.01, 0.1])
    with pytest.raises(ConfigError, match=r"search\.budget: 4 is not enough for the 6 points"):
        proposals(LIST, "grid", 4)
    with pytest.raises(ConfigError, match="has no steps"):
        proposals({"lr": {**RANGE["lr"], "steps": None}}, "grid")


def test_optuna_is_a_function_of_the_trials():
    pytest.importorskip("optuna")
    trials: list = []
    for number in range(4):
        (point,) = proposals({**RANGE, "a": ["x", None, 3]}, "optuna", trials=trials)
        assert [point] == proposals({**RANGE, "a": ["x", None, 3]}, "optuna", trials=trials)
        assert 0.001 <= point["lr"] <= 0.1
        trials.append((point, None if number == 1 else number / 10))
    assert proposals(RANGE, "optuna", trials=trials) == []
    assert len({point["lr"] for point, _ in trials}) == 4


def test_without_optuna_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"search\.engine: optuna is not installed"):
        proposals(RANGE, "optuna")


CONTENT = {
    "search": {"space": {"FedOBP": {"algorithm.quantile": [0.5, 0.7, 0.99]}}, "engine": "grid", "budget": 3},
    "set": {"data.validation_share": 0.2},
    "seeds": [4, 5],
    "controls": [],
}


def search_run(folder, engine="grid", fails=lambda cell: 0, **content):
    made = experiment(**{**CONTENT, "search": {**CONTENT["search"], "engine": engine}, **content})
    session = Session(Comparison(made, ToyResolver()), folder)
    stop = Moment(-1)

    def start(cell, run_dir, slot):
        stop.children.append(FakeFit(cell, run_dir, fails=fails(cell)))
        return stop.children[-1]

    stage = session.run(start, 2, stop, Quiet())
    return session, stage, stop.children


def quantile(cell):
    return cell.config["algorithm"]["init_args"].get("quantile")


@pytest.mark.parametrize("engine", ["grid", "random", "optuna"])
def test_validation_chooses_and_the_table_says_so(tmp_path, engine):
    if engine == "optuna":
        pytest.importorskip("optuna")
    session, stage, children = search_run(tmp_path, engine)
    trials = {quantile(child.cell): child.cell for child in children if child.cell.seed == 4 and quantile(child.cell)}
    # on validation data the toy has 1 - its mean on test data
    means = {q: sum(made_up(cell, cell.rounds, c) for c in range(CLIENTS)) for q, cell in trials.items()}
    best = min(means, key=lambda q: means[q])
    chosen = next(entry for entry in stage.entries if entry.method == "FedOBP")
    assert chosen.chosen == {"algorithm.quantile": best}
    assert [quantile(cell) for cell in chosen.cells] == [best, best]
    assert f"chosen by validation: algorithm.quantile = {best}" in conclude(session, stage).files[0].read_text()


def test_trials_run_with_the_first_seed_only(tmp_path):
    _, stage, children = search_run(tmp_path)
    chosen = next(entry for entry in stage.entries if entry.method == "FedOBP").chosen
    others = [child.cell.seed for child in children if quantile(child.cell) not in (None, chosen["algorithm.quantile"])]
    assert others == [4, 4]


def test_a_trial_may_fail(tmp_path):
    session, stage, _ = search_run(tmp_path, fails=lambda cell: int(quantile(cell) == 0.7))
    conclusion = conclude(session, stage)
    assert conclusion.problems == []
    assert any("a trial of a search failed" in note for note in conclusion.notes)
    assert next(e for e in stage.entries if e.method == "FedOBP").chosen != {"algorithm.quantile": 0.7}


@pytest.mark.parametrize("engine", ["grid", "random"])
def test_published_trials_take_the_place_of_runs(tmp_path, engine):
    session, stage, _ = search_run(tmp_path / "made", engine, fails=lambda cell: int(quantile(cell) == 0.7))
    first = conclude(session, stage)
    cells = tmp_path / "made" / "cells"
    content = {**CONTENT, "search": {**CONTENT["search"], "engine": engine}}
    comparison = Comparison(experiment(**content), ToyResolver(), read_trials(cells))
    again = Session(comparison, tmp_path / "again", read_cells(cells))
    stage = again.refresh()
    assert not again.missing(stage)
    second = conclude(again, stage)
    assert not second.problems
    assert [path.read_bytes() for path in first.files] == [path.read_bytes() for path in second.files]
    assert (tmp_path / "again" / "cells" / "trials.json").read_text() == (cells / "trials.json").read_text()
    trials = json.loads((cells / "trials.json").read_text())
    assert [trial["validation"] for trial in trials if trial["values"]["algorithm.quantile"] == 0.7] == [None]
    assert sum(trial["chosen"] for trial in trials) == 1


def test_a_damaged_file_of_trials_is_named(tmp_path):
    (tmp_path / "trials.json").write_text('[{"id": 3}]')
    with pytest.raises(ConfigError, match=r"cells: .*trials.json is not a file of trials: KeyError"):
        read_trials(tmp_path)


def test_a_search_whose_trials_all_fail_is_a_problem(tmp_path):
    session, stage, _ = search_run(tmp_path, fails=lambda cell: int(quantile(cell) is not None))
    assert "FedOBP: every trial of its search failed" in conclude(session, stage).problems


def test_a_run_without_validation_columns_ends_the_search(tmp_path):
    """To take every trial for a failure would hide the cause."""
    with pytest.raises(RunError, match=r"FedOBP, quantile=0.5, seed 4 cannot .* no column all_loss_validation"):
        search_run(tmp_path, report={"metric": "all_loss_before"})


def test_a_search_without_validation_data_is_refused():
    with pytest.raises(ConfigError, match=r"FedOBP has no validation data; set data\.validation_share above 0"):
        Comparison(experiment(**{**CONTENT, "set": {}}), ToyResolver())
