"""Two different configs are never shown as one, whatever directories are called and whatever they hold."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pfl_lightning.checkpoint.manifest import Manifest, manifest_path
from pfl_lightning.checkpoint.marker import Marker, read_marker
from pfl_lightning.cli.run_lock import RunLock
from pfl_lightning.compare.comparison import Comparison, outcomes_of
from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.results import Results
from pfl_lightning.compare.run_folder import choose, examine, new_directory, scan
from pfl_lightning.foundation.own_sources import source_digest
from tests.helpers.comparisons import (
    ToyResolver,
    experiment,
    write_clients,
    write_metrics,
    write_partition,
    write_run,
    write_summary,
)


@pytest.fixture
def stage():
    return Comparison(experiment(seeds=[0, 1]), ToyResolver()).stage({})


@pytest.fixture
def cells(stage) -> list[Cell]:
    return list(stage.cells.values())


def edit(path: Path, *keys: str, value: object) -> None:
    """Change a value in a run's config.yaml."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    place = config
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (path / "config.yaml").write_text(yaml.safe_dump(config))


def found(folder: Path, cells: list[Cell]) -> Results:
    results = Results(folder)
    results.refresh(cells)
    return results


def test_a_finished_run_is_found_under_any_name(tmp_path, cells):
    write_run(tmp_path / "no relation", cells[0])
    assert found(tmp_path, cells).finished.keys() == {cells[0].id}


def test_swapped_names_fool_nobody(tmp_path, cells):
    one, other = (new_directory(cell, tmp_path) for cell in cells[:2])
    write_run(other, cells[0])
    write_run(one, cells[1])
    finished = found(tmp_path, cells).finished
    assert finished[cells[0].id][0] == other
    assert finished[cells[1].id][0] == one


def test_the_name_of_another_cell_does_not_help(tmp_path, cells):
    write_run(new_directory(cells[1], tmp_path), cells[0])
    assert cells[1].id not in found(tmp_path, cells).finished


@pytest.mark.parametrize("checkpoint", [True, False])
def test_another_seed_in_an_edited_config_is_seen(tmp_path, cells, checkpoint):
    path = write_run(tmp_path / "run", cells[1], checkpoint=checkpoint)  # seed 1
    edit(path, "seed", value=0)
    results = found(tmp_path, cells)
    assert not results.finished
    assert not results.unfinished
    assert path in results.refused


def test_an_edited_value_is_seen_by_the_checkpoint(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[2])
    edit(path, "loop", "batch_size", value=99)
    other = Comparison(experiment(set={"loop.batch_size": 99}), ToyResolver()).stage({})
    cell = next(cell for cell in other.cells.values() if cell.method == "FedOBP")
    assert examine(cell, path).state == "unusable"
    marker = read_marker(path)
    assert marker
    Marker((path / "config.yaml").read_text(), marker.has_checkpoint).write(path)  # edited as well
    assert "checkpoints" in examine(cell, path).reason


def test_changed_code_of_an_own_class_is_seen(tmp_path, cells, monkeypatch):
    """The name in the config is the same, and the method is another one."""
    (tmp_path / "own_toy.py").write_text("class FedAvg: pass")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_toy")
    path = write_run(tmp_path / "run", cells[0])
    marker = read_marker(path)
    assert marker
    replace(marker, sources={"own_toy.FedAvg": source_digest("own_toy.FedAvg")}).write(path)
    assert examine(cells[0], path).state == "finished"
    (tmp_path / "own_toy.py").write_text("class FedAvg: lr = 2")
    assert examine(cells[0], path).reason == "own_toy.FedAvg has changed since"


def test_an_edited_value_is_seen_by_the_marker(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[2], checkpoint=False)
    edit(path, "loop", "batch_size", value=99)
    other = Comparison(experiment(set={"loop.batch_size": 99}), ToyResolver()).stage({})
    cell = next(cell for cell in other.cells.values() if cell.method == "FedOBP")
    assert "run.json" in examine(cell, path).reason
    (path / "run.json").unlink()
    assert "no run.json" in examine(cell, path).reason


def test_results_of_another_run_are_seen_by_the_summary(tmp_path, cells):
    """The directory is that of one run, with the summary of another one."""
    other = next(cell for cell in cells if cell.method == "FedOBP")
    for cell, words in [(cells[1], "seed"), (other, "algorithm")]:
        path = write_run(tmp_path / cell.label, cells[0])
        write_summary(path, cell)
        assert words in examine(cells[0], path).reason
    write_summary(path, cells[0], num_clients=99)
    assert "num_clients" in examine(cells[0], path).reason


def test_an_edited_value_makes_a_run_of_another_cell(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0])
    edit(path, "loop", "batch_size", value=99)
    results = found(tmp_path, cells)
    assert not results.finished
    assert not results.refused


def test_null_in_place_of_a_default_is_another_cell(tmp_path):
    """config.yaml leaves out null; a run with null must not count as one with the default."""
    methods = {"default": {"algorithm": "FedPAC"}, "null": {"algorithm": "FedPAC", "algorithm.head_lr": None}}
    cells = list(Comparison(experiment(methods=methods, controls=[]), ToyResolver()).stage({}).cells.values())
    write_run(tmp_path / "run", cells[1])
    assert found(tmp_path, cells).finished.keys() == {cells[1].id}


def test_another_partition_is_seen_by_comparison(tmp_path, cells):
    """config.yaml, summary and checkpoints agree, but the clients are others than in the other runs."""
    for cell in cells[:3]:
        write_run(tmp_path / cell.label, cell)
    moved = Comparison(experiment(seeds=[0, 1], set={"data.seed": 7}), ToyResolver()).stage({})
    write_partition(tmp_path / cells[1].label, next(iter(moved.cells.values())))
    results = found(tmp_path, cells)
    assert results.finished.keys() == {cells[0].id, cells[2].id}
    assert "partition" in results.refused[tmp_path / cells[1].label]


def test_other_samples_are_seen_by_comparison(tmp_path, cells):
    """A file of images has changed between two runs, and its labels have not: partition and config are the same."""
    for cell in cells[:3]:
        path = write_run(tmp_path / cell.label, cell)
        samples = "changed" if cell is cells[1] else "original"
        before = Manifest.read(manifest_path(path / "checkpoints", cell.rounds))
        replace(before, data=samples).write(path / "checkpoints")
    results = found(tmp_path, cells)
    assert results.finished.keys() == {cells[0].id, cells[2].id}
    assert results.refused[tmp_path / cells[1].label].startswith("its samples differ from other runs")


def test_where_two_partitions_differ_nobody_knows_which_is_right(tmp_path, cells):
    for cell in cells[:2]:
        write_run(tmp_path / cell.label, cell)
    moved = Comparison(experiment(seeds=[0, 1], set={"data.seed": 7}), ToyResolver()).stage({})
    write_partition(tmp_path / cells[1].label, next(iter(moved.cells.values())))
    assert not found(tmp_path, cells).finished
    for cell in cells[:2]:  # they were run again
        write_run(tmp_path / f"{cell.label} again", cell)
    finished = found(tmp_path, cells).finished
    assert {path.name for path, _ in finished.values()} == {f"{cell.label} again" for cell in cells[:2]}


def test_half_a_run_is_continued_and_not_read(tmp_path, cells):
    write_run(tmp_path / "run", cells[0], rounds=2)
    results = found(tmp_path, cells)
    assert not results.finished
    assert results.unfinished == {cells[0].id: tmp_path / "run"}


def test_a_summary_of_fewer_rounds_is_not_read(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0], rounds=2)
    (path / "summary.json").write_text(json.dumps({"rounds": 2, "seed": 0, "last": {}}))
    assert "rounds" in examine(cells[0], path).reason


def test_a_lost_or_broken_summary_is_made_again_from_the_checkpoint(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0])
    for text in ("{", "[]", ""):
        (path / "summary.json").write_text(text)
        assert examine(cells[0], path).state == "resumable"
    (path / "summary.json").unlink()
    assert examine(cells[0], path).state == "resumable"


def test_a_run_before_its_first_checkpoint_starts_again_in_its_directory(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0], rounds=1, checkpoint=False)
    assert found(tmp_path, cells).unfinished == {cells[0].id: path}


def test_a_run_whose_checkpoints_were_removed_is_left_alone(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0], rounds=2)
    shutil.rmtree(path / "checkpoints")
    results = found(tmp_path, cells)
    assert (results.finished, results.unfinished) == ({}, {})
    assert "no summary.json" in results.refused[path]


def test_metrics_of_another_run_are_seen(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0])
    write_metrics(path, cells[1], cells[1].rounds)
    assert "differ in all_acc_before" in examine(cells[0], path).reason


def test_values_per_client_of_another_run_are_seen(tmp_path, stage, cells):
    path = write_run(tmp_path / "run", cells[0], clients=True)
    outcomes, problems = outcomes_of(stage, found(tmp_path, cells).finished)
    assert outcomes[0].measurements
    assert not problems
    write_clients(path, cells[1], cells[1].rounds)
    outcomes, problems = outcomes_of(stage, found(tmp_path, cells).finished)
    assert not outcomes[0].measurements
    assert "clients.csv and its metrics.csv differ in all_acc_before" in problems[0]


def test_missing_rounds_are_seen(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0])
    lines = (path / "metrics.csv").read_text().splitlines()
    for kept in (lines[:-1], [*lines, lines[-1]], lines[:1]):
        (path / "metrics.csv").write_text("\n".join(kept))
        assert "every round once" in examine(cells[0], path).reason


@pytest.mark.parametrize("name", ["metrics.csv", "clients.csv", "partition.safetensors"])
def test_damaged_files_are_not_read(tmp_path, cells, name):
    path = write_run(tmp_path / "run", cells[0], clients=True)
    (path / name).write_text("round,\x00\nx,y,z\n")
    results = found(tmp_path, cells)
    assert not results.finished
    assert name in results.refused[path]


def test_a_finished_run_is_preferred_to_half_of_one(tmp_path, cells):
    write_run(tmp_path / "a", cells[0], rounds=2)
    write_run(tmp_path / "b", cells[0])
    chosen, _ = choose(cells[0], scan(tmp_path)[cells[0].id])
    assert chosen
    assert chosen.path.name == "b"


def test_a_run_in_progress_is_nobody_s_to_continue(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0], rounds=2)
    lock = RunLock(path)
    assert examine(cells[0], path).state == "running"
    lock.release()
    assert examine(cells[0], path).state == "resumable"


def test_a_config_that_is_no_config_is_passed_over(tmp_path, cells):
    for index, text in enumerate(("", "[]", "a: [", "\x00", "3")):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "config.yaml").write_text(text)
    assert scan(tmp_path) == {}


def test_a_changed_config_is_read_again(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0])
    assert list(scan(tmp_path)) == [cells[0].id]
    edit(path, "loop", "batch_size", value=99)
    assert list(scan(tmp_path)) != [cells[0].id]


def test_new_directories_never_exist_yet(tmp_path, cells):
    names = []
    for _ in range(3):
        path = new_directory(cells[0], tmp_path)
        path.mkdir()
        names.append(path.name)
    assert names == [f"FedAvg-seed-0-{cells[0].id[:8]}{end}" for end in ("", "-2", "-3")]


def test_a_value_that_was_lost_in_the_last_round_is_not_replaced_by_an_earlier_one(tmp_path, stage, cells):
    path = write_run(tmp_path / "run", cells[0], last={})
    lines = (path / "metrics.csv").read_text().splitlines()
    lines[-1] = ",".join(lines[-1].split(",")[:5] + [""] * 4)
    (path / "metrics.csv").write_text("\n".join(lines))
    outcomes, problems = outcomes_of(stage, found(tmp_path, cells).finished)
    assert not any(outcome.measurements for outcome in outcomes)
    assert "no all_acc_before after the last round" in problems[0]
