"""Every table and figure of the papers has an experiment file, and every cell of it is a config that exists."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pfl_lightning.algorithms
from pfl_lightning.cli.compare_resolver import ParserResolver
from pfl_lightning.cli.extends import config_files
from pfl_lightning.compare.experiment import Column, Experiment, Method
from pfl_lightning.compare.experiment_file import experiment_from
from pfl_lightning.compare.file_layers import layered, with_variant
from pfl_lightning.compare.layers import class_name, merge
from pfl_lightning.compare.metric import metric_from
from pfl_lightning.compare.resolving import resolved
from pfl_lightning.compare.search import propose
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.tasks import Classification
from tools.check import paper_cells

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "configs" / "papers"
PAGE = (ROOT / "docs" / "papers.md").read_text()
PAPERS = {
    "fedobp": [*(f"table{n}" for n in (1, 5, 6, 7, 8)), *(f"figure{n}" for n in range(2, 13))],
    "fedselect": ["table1", "table2", "table3", "figure2", "figure3", "figure4"],
    "fedpurin": ["table1", "table2", "table3", *(f"figure{n}" for n in range(2, 7))],
    "pfedsop": ["table2", "table2_search", "table2_time", "table3", "table4", *(f"figure{n}" for n in range(2, 7))],
    "learn2pfed": [
        *(f"table{n}" for n in range(1, 7)),
        *("table1_authors", "table1_same_model", "table3_pjm", "fig3", "fig4", "fig5", "fig7"),
    ],
}
"""Everything that shows results. docs/papers.md lists the rest, such as tables of layers and diagrams."""
DATA = {
    "CIFAR-10": "CIFAR10",
    "CIFAR10-C": "CIFAR10C",
    "CIFAR-100": "CIFAR100",
    "EMNIST": "EMNIST",
    "SVHN": "SVHN",
    "MNIST": "MNIST",
    "FMNIST": "FashionMNIST",
    "MEDMNISTA": "OrganAMNIST",
    "MEDMNISTC": "OrganCMNIST",
    "Mini-ImageNet": "MiniImageNet",
    "OfficeHome": "OfficeHome",
    "Tiny-ImageNet": "TinyImageNet",
}
"""A word of a column's label → the class of its data."""
ONE_SET = {"learn2pfed_polynomial": "Polynomial", "learn2pfed_load": "ElectricityLoad", "learn2pfed_images": "CIFAR10"}
"""Base of an experiment whose labels do not name the data → their class."""
SEEDS = {
    "fedobp": ([0, 1, 2, 3], 0),
    "fedselect": ([0, 1, 2], 0),
    "fedpurin": ([1, 2, 3], None),
    "pfedsop": ([0], 0),
    "learn2pfed": ([0, 1, 2, 3, 4], 0),
}
"""The seeds of a paper's runs, and `data.seed`: one partition for all of them, or None for one with each seed."""
FILES = [FOLDER / paper / f"{name}.yaml" for paper, names in PAPERS.items() for name in names]


@cache
def content(path: Path) -> dict[str, Any]:
    return layered(config_files(path))


def read(path: Path, variant: str | None = None) -> Experiment:
    return experiment_from(with_variant(content(path), variant, path.stem), path)


def variants(path: Path) -> list[str]:
    return list(content(path).get("variants") or {})


VARIANTS = [(path, variant) for path in FILES for variant in variants(path)]


def test_every_table_and_figure_has_a_file_and_the_page_lists_it():
    for paper, names in PAPERS.items():
        assert sorted(path.stem for path in (FOLDER / paper).glob("*.yaml")) == sorted(names)
    for path in FILES:
        assert f"configs/papers/{path.parent.name}/{path.name}" in PAGE, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_says_how_it_is_run_what_it_measures_and_what_it_costs(path):
    comment = "".join(re.findall(r"^#.*\n", path.read_text(), re.MULTILINE))
    assert f"pfl-compare configs/papers/{path.parent.name}/{path.name}" in comment
    assert re.search(r"^# Metric", comment, re.MULTILINE)
    assert re.search(r"[Cc]ost:", comment)
    made = read(path)
    name = path.stem.replace("_", "-")
    assert made.name == f"{path.parent.name}-{name}", "two experiments must not share a folder"
    assert made.caption
    assert made.paper or "The paper prints no values" in comment
    seeds, partition_seed = SEEDS[path.parent.name]
    assert list(made.seeds) == seeds[: len(made.seeds)]
    generated = "polynomial" in str(made.base)  # a trial draws its own points
    assert made.partition_seed == (None if generated else partition_seed)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_page_says_how_many_runs_a_file_has(path):
    """Rows that report two columns of the same run count once."""
    (line,) = [line for line in PAGE.splitlines() if f"configs/papers/{path.parent.name}/{path.name})" in line]
    said = line.rstrip(" |").rpartition("|")[2].strip()
    if said.startswith("none beside"):
        assert "--out runs/compare/" in path.read_text()
        return
    made, runs, trials = read(path), set(), 0
    for method in made.methods:
        kind = class_name(method.config, "algorithm") or method.root or method.label
        for column in made.columns:
            keys = {**method.keys, **method.at.get(column.label, {})}
            runs |= {repr((kind, method.config, sorted(keys.items()), column.label, seed)) for seed in made.seeds}
            if made.search:
                trials += len(list(propose(made.search, method.label, column.label, True, [])))
    counted = sum(int(number) for number in re.findall(r"(\d+)(?: runs)? ×", said))
    assert counted == (trials or len(runs))


def test_pfedsop_and_fedselect_average_as_their_papers_define_fedavg():
    """The mean over clients is unweighted there: pFedSOP's Eq. 4, FedSelect's section 3."""
    for file, rows in (
        ("pfedsop/table2", ("FedAvg", "FedProx", "FedAvg FT", "FedProx FT")),
        ("fedselect/table1", ("FedAvg", "FedAvg + FT")),
    ):
        keys = {method.label: method.keys for method in read(FOLDER / f"{file}.yaml").methods}
        for row in rows:
            assert keys[row]["algorithm.weighting"] == "uniform", (file, row)


def test_pfedme_has_a_rate_with_which_it_runs():
    """With its default of 0.1 it diverges on every task of these tables."""
    rows = [
        method for path in FILES for method in read(path).methods if class_name(method.config, "algorithm") == "PFedMe"
    ]
    assert len(rows) == 5
    for method in rows:
        assert method.keys["algorithm.personal_lr"] == 0.02


def test_figures_that_compare_methods_have_every_row_of_their_table():
    table = {row for row, _ in read(FOLDER / "pfedsop" / "table2.yaml").paper}
    for number in (2, 3, 4):
        assert table <= {method.label for method in read(FOLDER / "pfedsop" / f"figure{number}.yaml").methods}


@pytest.mark.parametrize(("path", "variant"), VARIANTS, ids=lambda value: getattr(value, "stem", value))
def test_a_variant_says_in_its_caption_what_it_leaves_out(path, variant):
    full, short = read(path), read(path, variant)
    assert short.name == f"{full.name}-{variant}"
    said, _, _ = short.caption.partition(full.caption)
    assert said.startswith("Shortened to")
    for key, value in short.set.items():
        if full.set.get(key) == value:
            continue
        if key == "loop.rounds":
            assert f"{value} of " in said
        elif key == "loop.eval_every" and full.report.select == "best" and "all_" in full.report.metric:
            assert f"every {value} rounds" in said
        elif key != "loop.eval_every":
            assert str(value) in said, key
    if len(short.seeds) < len(full.seeds):
        assert re.search(r"one (seed|of five)", said)
    labels = {method.label: method.keys for method in full.methods}
    if len(short.methods) < len(labels):
        assert "methods" in said or "grid" in said
    for method in short.methods:
        assert method.label in labels or f"adds {method.label.replace(', ', ' with ')}" in said
        for key, value in method.keys.items():
            assert labels.get(method.label, labels.get(method.root, {})).get(key) == value or str(value) in said, (
                method.label
            )


@pytest.mark.parametrize(("variant", "points"), [(None, 150), ("short", 30)])
def test_every_point_of_the_search_is_a_method_that_exists(variant, points):
    experiment = read(FOLDER / "pfedsop" / "table2_search.yaml", variant)
    assert experiment.set["data.validation_share"] == 0.2
    assert experiment.search
    (column,) = experiment.columns
    rates = []
    for method in experiment.methods:
        for point in propose(experiment.search, method.label, column.label, True, []):
            keys = {**method.keys, **point}
            algorithm = class_name(method.config, "algorithm") or method.root or method.label
            own = {key.removeprefix("algorithm."): value for key, value in keys.items() if key.startswith("algorithm.")}
            getattr(pfl_lightning.algorithms, algorithm)(**own)
            rates.append((algorithm, own.get("eta1"), point["task.optimizer.lr"]))
    assert len(rates) == points
    assert {eta1 for algorithm, eta1, _ in rates if algorithm == "PFedSOP"} >= {None, 1.0, 0.1, 0.01}
    assert {lr for algorithm, _, lr in rates if algorithm == "PFedSOP"} >= {1.0, 0.1, 0.01}


def test_every_cell_is_a_config_that_exists():
    """Every cell has its data, its method and settings that they know. One of each kind goes through the parser."""
    resolver, parsed = ParserResolver(), set()
    for path in FILES:
        for experiment in (read(path), *(read(path, variant) for variant in variants(path))):
            for method in experiment.methods:
                for column in experiment.columns:
                    data, algorithm = check_cell(resolver, experiment, method, column, path)
                    if algorithm not in parsed or data not in parsed:
                        config = resolved(resolver, experiment, method, column, {})
                        assert (class_name(config, "data"), class_name(config, "algorithm")) == (data, algorithm)
                        assert config["data"]["init_args"].get("seed") == experiment.partition_seed
                        parsed |= {data, algorithm}
    assert len(parsed) > 30


def check_cell(
    resolver: ParserResolver, experiment: Experiment, method: Method, column: Column, path: Path
) -> tuple[str, str]:
    where = f"{path.parent.name}/{path.name}: {method.label} at {column.label}"
    base = column.base or experiment.base
    assert base, where
    config = merge([resolver.read(base), method.config])
    data = class_name(config, "data") or ""
    named = [DATA[word] for word in column.label.split(", ") if word in DATA]
    default = "CIFAR10" if column.label.startswith("train_size") else ONE_SET.get(Path(base).stem, "")
    assert data == (named[0] if named else default), where
    algorithm = class_name(method.config, "algorithm") or method.root or method.label
    keys = {**method.keys, **experiment.set, **column.keys, **method.at.get(column.label, {})}
    own = {key.removeprefix("algorithm."): value for key, value in keys.items() if key.startswith("algorithm.")}
    made = getattr(pfl_lightning.algorithms, algorithm)
    assert own.keys() <= inspect.signature(made).parameters.keys(), where
    made(**own)  # it refuses values that are out of range
    loop = {key.removeprefix("loop."): value for key, value in keys.items() if key.startswith("loop.")}
    settings = LoopConfig(**{**config["loop"], **loop})
    metric = metric_from(method.report.over(experiment.report), Classification.better, False)
    assert metric.moment != "finetuned" or settings.finetune_epochs, where
    assert not metric.everyone or settings.eval_every, where
    return data, algorithm


@pytest.mark.parametrize(
    ("file", "row", "column"),
    [
        ("fedselect/table1", "FedSelect", "CIFAR-10"),
        ("pfedsop/table2", "pFedSOP", "CIFAR-10, Dir(0.07)"),
    ],
)
def test_a_cell_trains_for_a_round_and_has_its_metric(file: str, row: str, column: str) -> None:
    """Random images stand in for the data, and a small net for ResNet-18. The tool trains cells with their own net."""
    experiment = paper_cells.read(FOLDER / f"{file}.yaml")
    experiment = replace(experiment, set={**experiment.set, "task.net": "SmallCNN"})
    (method,) = [method for method in experiment.methods if method.label == row]
    (place,) = [place for place in experiment.columns if place.label == column]
    value = paper_cells.train_cell(experiment, method, place, ParserResolver())
    assert 0 <= value <= 1
