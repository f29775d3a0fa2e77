"""Runs with different settings are never shown as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_lightning.metrics.record import Metric
from pfl_lightning.report.curves import draw_moments
from pfl_lightning.report.groups import Reported, group_runs, reported
from pfl_lightning.report.page import page
from pfl_lightning.report.per_client import draw_gains, gains
from pfl_lightning.report.personal_layers import merged
from pfl_lightning.report.picked import MOST_COLOURED, in_colour, picked
from pfl_lightning.report.run_data import RunData
from pfl_lightning.report.style import color, unit_of_bytes
from pfl_lightning.report.sweep import find_sweep

SHOWN = Reported("all_acc_before", Metric(), "before")


def run(name: str = "FedAvg", seed: int = 0, value: float = 0.5, **settings: Any) -> RunData:
    config: dict[str, Any] = {
        "algorithm": {"class_path": f"pfl_lightning.algorithms.{name}", "init_args": settings.pop("algorithm", {})},
        "loop": {"rounds": 2, **settings.pop("loop", {})},
        "fabric": {"devices": 1, "precision": "32-true", **settings.pop("fabric", {})},
        "data": {"class_path": "Data", "init_args": {"root": "data", **settings.pop("data", {})}},
        "seed": seed,
        "run_dir": f"runs/{name}-{seed}",
        **settings,
    }
    metrics = {"round": [1.0, 2.0], "all_acc_before": [0.1, value]}
    return RunData(Path(config["run_dir"]), config, metrics)


@pytest.mark.parametrize(
    "settings",
    [
        {"fabric": {"precision": "bf16-mixed"}},
        {"loop": {"rounds": 3}},
        {"data": {"alpha": 0.1}},
        {"algorithm": {"weighting": "uniform"}},
        {"task": {"class_path": "Other"}},
    ],
)
def test_other_settings_are_another_group(settings: dict[str, Any]) -> None:
    groups = group_runs([run(), run(seed=1, **settings)])
    assert len(groups) == 2
    assert len({group.label for group in groups}) == 2


@pytest.mark.parametrize(
    "settings", [{"fabric": {"devices": 4}}, {"data": {"root": "elsewhere"}}, {"store": {"memory": 1}}]
)
def test_places_do_not_matter(settings: dict[str, Any]) -> None:
    (group,) = group_runs([run(), run(seed=1, **settings)])
    assert [one.seed for one in group.runs] == [0, 1]


def test_the_same_seed_twice_is_not_two_seeds() -> None:
    groups = group_runs([run(), run(value=0.9), run(seed=1)])
    assert [[one.seed for one in group.runs] for group in groups] == [[0, 1], [0]]
    assert [group.label for group in groups] == ["FedAvg", "FedAvg #2"]


def test_a_sweep_has_a_curve_per_score_and_controls_as_levels() -> None:
    swept = [
        run("FedOBP", value=q, algorithm={"quantile": q, "score": score})
        for q in (0.9, 0.5, 0.99)
        for score in ("obp", "fisher")
    ]
    sweep = find_sweep(group_runs([*swept, run(), run("Local")]))
    assert sweep is not None
    assert sweep.key == "algorithm.quantile"
    assert list(sweep.series) == ["FedOBP (score obp)", "FedOBP (score fisher)"]
    for points in sweep.series.values():
        assert [group.settings["algorithm.quantile"] for group in points] == [0.5, 0.9, 0.99]
    assert [group.label for group in sweep.references] == ["FedAvg", "Local"]


@pytest.mark.parametrize(("seeds", "folded"), [(12, False), (13, True)])
def test_a_long_list_of_runs_is_folded(seeds: int, folded: bool) -> None:
    """It would put the figures of a large comparison many screens below its table."""
    text = page(group_runs([run(seed=seed) for seed in range(seeds)]), SHOWN, [])
    assert (f"<summary>All {seeds} runs</summary>" in text) is folded
    assert text.count("<details>") == text.count("</details>") == 1 + folded  # and the config


def test_two_values_are_no_sweep() -> None:
    assert find_sweep(group_runs([run("FedOBP", algorithm={"quantile": q}) for q in (0.5, 0.9)])) is None


def test_of_many_methods_the_controls_and_the_best_have_colours() -> None:
    runs = [run(f"Method{i:02}", value=i / 100) for i in range(20)]
    groups = group_runs([run("Local", value=0.0), run("FedAvg", value=0.01), *runs])
    chosen = [group.label for group in picked(groups, SHOWN)]
    assert chosen == ["Local", "FedAvg", *(f"Method{i:02}" for i in range(19, 19 - MOST_COLOURED + 2, -1))]
    indices = [index for _, index in in_colour(groups, SHOWN)]
    assert sorted(index for index in indices if index is not None) == list(range(MOST_COLOURED))
    assert len(indices) == len(groups)
    assert np.isclose(sum(index is None for index in indices), len(groups) - MOST_COLOURED)


def test_gains_are_those_of_all_seeds_over_the_same_net_alone() -> None:
    def tested(name: str, seed: int, net: str, *values: float) -> RunData:
        task = {"class_path": "T", "init_args": {"net": net}}
        return replace(run(name, seed, task=task), clients={"all_acc_before": np.array(values)})

    groups = group_runs(
        [
            tested("Local", 0, "CNN", 0.5, 0.5),
            tested("Local", 1, "CNN", 0.5, 0.5),
            tested("FedAvg", 0, "CNN", 0.75, 0.25),
            tested("FedAvg", 1, "CNN", 0.75, 0.75),
            tested("FedAvg", 2, "CNN", 0.0, 0.0),
            tested("FedBN", 0, "ResNet8", 0.0, 0.0),
        ]
    )
    ((group, gain),) = gains(groups, SHOWN)
    assert group.label == "FedAvg"
    assert gain.tolist() == [0.25, -0.25, 0.25, 0.25]
    figure = draw_gains(groups, SHOWN)
    assert figure is not None
    line = next(one for one in figure.axes[0].get_lines() if "25 % of clients do worse" in str(one.get_label()))
    assert line.get_color() == color(1)  # its colour in the figures that also show Local


def test_bytes_have_one_unit_in_a_figure() -> None:
    assert unit_of_bytes(1023) == (1.0, "B")
    assert unit_of_bytes(3 * 2**20) == (2.0**20, "MiB")
    assert unit_of_bytes(2.0**60) == (2.0**40, "TiB")


def test_lines_that_lie_on_each_other_are_one_line_with_all_names() -> None:
    shares = np.array([[0.0, 0.001, 0.0, 1.0], [0.0, 0.001, 0.0, 1.0]])
    lines = merged(["a", "b", "c", "head"], shares)
    assert [name for name, _ in lines] == ["a and 2 more", "head"]
    assert [name for name, _ in merged(["a", "b"], shares[:, :2])] == ["all 2, the same"]


def test_tested_models_that_are_the_same_share_a_line() -> None:
    """FedAvg's clients start with the global model. A line for each of them would hide the first one."""
    columns = {"all_acc_after": [0.6, 0.7], "all_global_acc": [0.1, 0.5]}
    figure = draw_moments(replace(run(), metrics={**run().metrics, **columns}), SHOWN)
    assert figure is not None
    found = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
    assert found == {
        "personal, before local training; plain global model": color(0),
        "personal, after local training": color(1),
    }


def test_the_column_of_held_out_clients_is_an_accuracy() -> None:
    metrics = {**run().metrics, "held_out_acc_after": [np.nan, 0.5]}
    shown = reported([replace(run(), metrics=metrics)], "held_out_acc_after")
    assert (shown.metric.name, shown.moment, shown.axis) == ("acc", "after", "accuracy (%)")
