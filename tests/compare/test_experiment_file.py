"""An experiment file is read as it is meant, and every mistake in it ends in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_lightning.compare.experiment import Report
from pfl_lightning.compare.experiment_file import experiment_from
from pfl_lightning.foundation.errors import ConfigError


def read(path: Path = Path("dir/toy.yaml"), **content):
    return experiment_from({"methods": ["FedAvg"], **content}, path)


def test_a_method_inherits_from_another_one_and_from_a_file(tmp_path):
    (tmp_path / "fedobp.yaml").write_text("algorithm: FedOBP")
    made = read(
        tmp_path / "toy.yaml",
        methods={
            "A": {"extends": "fedobp.yaml", "algorithm.quantile": 0.9, "report": {"metric": "all_acc_after"}},
            "B": {"extends": "A", "loop": {"rounds": 3}, "algorithm.score": "fisher", "report": {"select": "best"}},
        },
    )
    method = made.methods[1]
    assert method.extends == (tmp_path / "fedobp.yaml").resolve()
    assert method.root == "A"
    assert method.keys == {"algorithm.quantile": 0.9, "algorithm.score": "fisher"}
    assert method.config == {"loop": {"rounds": 3}}
    assert (method.report.metric, method.report.select) == ("all_acc_after", "best")


def test_the_grid_is_a_product_with_short_labels(tmp_path):
    (tmp_path / "base.yaml").touch()
    grid = {
        "data.partition.alpha": [0.1, 0.5],
        "net": {"small": {"task.net": "MLP", "base": "base.yaml"}, "large": None},
    }
    made = read(tmp_path / "toy.yaml", grid=grid)
    assert made.column_labels == ["alpha=0.1, small", "alpha=0.1, large", "alpha=0.5, small", "alpha=0.5, large"]
    assert made.columns[0].keys == {"data.partition.alpha": 0.1, "task.net": "MLP"}
    assert made.columns[0].base == (tmp_path / "base.yaml").resolve()
    assert made.columns[1].base is None


def test_axes_with_the_same_last_word_keep_their_full_names():
    made = read(grid={"algorithm.lr": [1], "task.optimizer.lr": [2]})
    assert made.column_labels == ["algorithm.lr=1, task.optimizer.lr=2"]


def test_values_of_the_paper():
    made = read(
        grid={"data.alpha": [0.1, 0.5]}, paper={"FedAvg": {"alpha=0.1": "84.2 ± 0.3", "alpha=0.5": 80}, "Local": {}}
    )
    assert made.paper == {("FedAvg", "alpha=0.1"): "84.2 ± 0.3", ("FedAvg", "alpha=0.5"): "80"}
    assert read(paper={"FedAvg": 58.6}).paper == {("FedAvg", ""): "58.6"}


def test_numbers_in_yaml_s_blind_spot_are_numbers():
    made = read(search={"space": {"*": {"lr": {"low": "1e-3", "high": "1e-1", "log": True}}}})
    assert made.search
    assert made.search.space_of("FedAvg")["lr"] == {"low": 0.001, "high": 0.1, "log": True, "steps": None}


def test_files_are_found_in_the_folder_first_and_then_in_the_working_directory(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
        (folder / "both.yaml").touch()
    (here / "one.yaml").touch()
    monkeypatch.chdir(here)
    assert read(beside / "toy.yaml", base="both.yaml").base == (beside / "both.yaml").resolve()
    assert read(beside / "toy.yaml", base="one.yaml").base == (here / "one.yaml").resolve()


def test_defaults():
    made = read()
    assert (made.name, made.seeds, made.partition_seed, made.report) == ("toy", (0,), 0, Report())
    assert made.controls == ("Local", "FedAvg", "FedAvg+FT", "alone")
    assert read(controls=False).controls == ()
    assert read(partition_seed="run").partition_seed is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"methds": {}}, "methds: no such key; use methods | "),
        ({"methods": {}}, "methods: {} is not allowed; use at least one label"),
        ({"methods": "FedAvg"}, "methods: 'FedAvg' is not allowed; use keys with values"),
        ({"methods": ["A", "A"]}, "each label once"),
        ({"methods": {"A": {"extends": "B"}, "B": {"extends": "A"}}}, "extends itself"),
        ({"methods": {"A": {"extends": "none.yaml"}}}, "methods.A.extends: there is no file none.yaml"),
        ({"methods": {"A": {"seed": 1}}}, "methods.A: 'seed' is not allowed"),
        ({"methods": {"A": {"run_dir": "x"}}}, "methods.A: 'run_dir' is not allowed"),
        ({"methods": {"A": {"report": {"metrc": 1}}}}, "methods.A.report.metrc: no such key; use metric | "),
        ({"methods": {"A": {"at": {"alpha=1": {"lr": 1}}}}}, "methods.A.at: 'alpha=1' is not allowed"),
        ({"base": "none.yaml"}, "base: there is no file none.yaml"),
        ({"grid": {"lr": []}}, "grid.lr: [] is not allowed"),
        ({"grid": {"lr": [1, 1]}}, "different values"),
        ({"grid": {"seed": [1, 2]}}, "grid: 'seed' is not allowed"),
        ({"seeds": []}, "seeds: [] is not allowed"),
        ({"seeds": [0, 0]}, "seeds: [0, 0] is not allowed"),
        ({"seeds": [-1]}, "seeds: [-1] is not allowed"),
        ({"seeds": [True]}, "seeds: [True] is not allowed"),
        ({"partition_seed": "no"}, "partition_seed: 'no' is not allowed"),
        ({"report": {"select": "max"}}, "report.select: 'max' is not allowed; use last | best"),
        ({"report": {"better": "more"}}, "report.better: 'more' is not allowed"),
        ({"report": {"target": "high"}}, "report.target: 'high' is not allowed; use a number"),
        ({"report": {"digits": -1}}, "report.digits: -1 is not allowed"),
        ({"report": 3}, "report: 3 is not allowed; use keys with values"),
        ({"paper": {"Nobody": 1}}, "paper: 'Nobody' is not allowed; use FedAvg | Local"),
        ({"paper": {"FedAvg": "high"}}, "paper.FedAvg: 'high' is not allowed; use a number"),
        ({"paper": {"FedAvg": 1}, "grid": {"lr": [1, 2]}}, "a value for each column: lr=1 | lr=2"),
        ({"controls": "Local"}, "controls: 'Local' is not allowed; use a list"),
        ({"search": {"budget": 3}}, "search.space: None is not allowed"),
        ({"search": {"space": {"Nobody": {}}}}, "search.space: 'Nobody' is not allowed"),
        ({"search": {"space": {"*": {"lr": 3}}}}, "search.space.*.lr: 3 is not allowed; use a list"),
        ({"search": {"space": {"*": {"lr": {"low": 2, "high": 1}}}}}, "a low below high"),
        ({"search": {"space": {"*": {"lr": {"low": 0, "high": 1, "log": True}}}}}, "a low above 0 with log"),
        ({"search": {"space": {"*": {"lr": {"low": 1, "hi": 2}}}}}, "search.space.*.lr.hi: no such key; use high"),
        ({"search": {"space": {"*": {"lr": [1]}}, "budget": 0}}, "search.budget: 0 is not allowed"),
        ({"search": {"space": {"*": {"lr": [1]}}, "engine": "magic"}}, "search.engine: 'magic' is not allowed"),
    ],
)
def test_mistakes_end_in_one_line(content, words):
    with pytest.raises(ConfigError) as error:
        read(**content)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_and_columns_keep_a_part_of_the_experiment():
    grid = {
        "data": {"A": {"loop.rounds": 1}, "B": {"loop.rounds": 2}},
        "part": {"x": None, "y": {"loop.batch_size": 3}},
    }
    paper = {"FedAvg": [1, 2, 3, None], "FedPer": [5, 6, 7, 8]}
    made = read(methods=["FedAvg", "FedPer", "FedRep"], grid=grid, paper=paper, rows=["FedPer"], columns=["*, y"])
    assert [method.label for method in made.methods] == ["FedPer"]
    assert made.column_labels == ["A, y", "B, y"]
    assert made.paper["FedPer", "B, y"] == "8"
    assert ("FedAvg", "B, y") not in made.paper
    for key, value in (("rows", ["Fed"]), ("columns", ["C*"])):
        with pytest.raises(ConfigError, match=f"{key}: '.*' is not allowed"):
            read(grid=grid, **{key: value})


def test_a_list_of_the_paper_s_values_has_one_for_each_column():
    with pytest.raises(ConfigError, match=r"paper.FedAvg: \[1\] is not allowed; use a value for each column"):
        read(grid={"data.alpha": [0.1, 0.5]}, paper={"FedAvg": [1]})
