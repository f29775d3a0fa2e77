"""Attempts to make a comparison flatter a row, or lose one, with settings that nobody notices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pfl_lightning.compare.cell_json import read_cells
from pfl_lightning.compare.comparison import Comparison, outcomes_of
from pfl_lightning.compare.conclusion import conclude
from pfl_lightning.compare.pairing import compare_pairs
from pfl_lightning.compare.run_facts import read_facts
from pfl_lightning.compare.session import Session
from pfl_lightning.compare.table import Place, build_table
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers import comparisons
from tests.helpers.comparisons import CLIENTS, ToyResolver, experiment, write_run

THREE = {"FedAvg": {}, "FedOBP": {}, "FedPAC": {}}
ONE_RUN = {
    "FedAvg": {},
    "FedAvg, tuned": {"extends": "FedAvg", "report": {"metric": "all_acc_finetuned"}},
    "FedAvg (tuned)": {"extends": "FedAvg", "report": {"select": "best"}},
}
"""Rows that report the same run, with labels that become the same name of a file."""


@pytest.fixture(autouse=True)
def all_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(comparisons.DEFAULTS["loop"], "eval_clients", None)
    monkeypatch.setitem(comparisons.DEFAULTS["loop"], "test_every", 1)


def session_of(folder: Path, cells: Path | None = None, **content: object) -> Session:
    published = read_cells(cells) if cells else None
    session = Session(Comparison(experiment(controls=[], **content), ToyResolver()), folder, published)
    for number, (cell, _) in enumerate([] if cells else session.missing(session.refresh())):
        write_run(folder / "runs" / f"{len(list(folder.glob('runs/*')))}-{number}", cell, clients=True)
    return session


def places(folder: Path, **content: object) -> tuple[dict[str, Place], list[str]]:
    """The entries of a table by row, and its footnotes."""
    session = session_of(folder, **content)
    outcomes, problems = outcomes_of(session.refresh(), session.results.finished)
    assert not problems
    table = build_table(session.comparison.experiment, outcomes)
    return {row.method: row.places[0] for row in table.rows}, list(table.notes.values())


@pytest.mark.parametrize(
    ("settings", "report", "note"),
    [
        ({"loop.eval_clients": 2}, {}, "loop.eval_clients 2 instead of null"),
        ({"loop.eval_every": 1}, {"select": "best"}, "loop.eval_every 1 instead of 2"),
        ({"loop.eval_every": 1}, {"select": "mean"}, "loop.eval_every 1 instead of 2"),
        ({"loop.finetune_epochs": 50}, {"metric": "all_acc_finetuned"}, "loop.finetune_epochs 50 instead of 1"),
    ],
)
def test_a_row_with_another_chance_is_marked_and_not_ranked(tmp_path, settings, report, note):
    shared = {"loop.finetune_epochs": 1} if "finetuned" in str(report) else {}
    rows = dict.fromkeys(THREE, shared) | {"FedOBP": {**shared, **settings}}
    found, notes = places(tmp_path, methods=rows, report=report)
    assert notes == [note]
    assert (found["FedOBP"].rank, found["FedOBP"].marks) == (None, ("a",))
    assert {found["FedAvg"].rank, found["FedPAC"].rank} == {1, 2}


def test_settings_without_an_effect_on_the_value_are_not_marked(tmp_path):
    """The last value does not depend on how often clients are evaluated, nor on a copy that is not reported."""
    rows = {**THREE, "FedOBP": {"loop.eval_every": 1, "loop.finetune_epochs": 5, "loop.test_every": 2}}
    found, notes = places(tmp_path, methods=rows)
    assert not notes
    assert sorted(place.rank for place in found.values()) == [1, 2, 3]


def test_a_row_with_fewer_digits_is_not_rounded_up_to_the_top(tmp_path, monkeypatch):
    values = {"FedAvg": 0.606, "FedOBP": 0.609, "FedPAC": 0.1}
    monkeypatch.setattr(comparisons, "made_up", lambda cell, *_: values[cell.method])
    found, _ = places(tmp_path, methods={**THREE, "FedAvg": {"report": {"digits": 0}}})
    assert [found[row].text for row in THREE] == ["61", "60.9", "10.0"]
    assert [found[row].rank for row in THREE] == [2, 1, 3]


def test_a_column_has_one_direction():
    rows = {**THREE, "FedOBP": {"report": {"better": "lower"}}}
    line = r"methods\.FedOBP\.report\.better: a lower all_acc_before is better here, and worse for FedAvg"
    with pytest.raises(ConfigError, match=line):
        Comparison(experiment(methods=rows), ToyResolver())


def test_rows_of_one_run_have_a_cell_each_and_the_same_tables_without_it(tmp_path):
    """Each cell keeps what its row reports. Together they are the run."""
    content = {"methods": ONE_RUN, "seeds": [0, 1], "set": {"loop.finetune_epochs": 2}}
    session = session_of(tmp_path / "first", **content)
    conclude(session, session.refresh())
    cells = tmp_path / "first" / "cells"
    assert len(list(cells.iterdir())) == 6
    again = session_of(tmp_path / "again", cells, **content)
    conclusion = conclude(again, again.refresh())
    assert not conclusion.problems
    for name in ("table.md", "table.csv", "table.tex", *(f"cells/{path.name}" for path in cells.iterdir())):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


def test_a_table_that_loses_rows_says_so(tmp_path):
    first = session_of(tmp_path, methods=["FedAvg", "FedOBP"])
    assert conclude(first, first.refresh()).notes == []
    other = session_of(tmp_path, methods=["FedAvg", "FedPAC"])
    (note,) = conclude(other, other.refresh()).notes
    assert "table.md no longer has FedOBP; their runs are kept" in note
    assert conclude(other, other.refresh()).notes == []


def test_a_table_from_several_versions_says_so(tmp_path):
    """Results may change between versions, and the config of a cell stays the same."""
    session = session_of(tmp_path, methods=["FedAvg", "FedOBP"])
    cells = list(session.refresh().cells.values())
    for cell, version in zip(cells, ("0.1.0", "0.2.0"), strict=True):
        path = session.results.finished[cell.id][0]
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(json.dumps({**summary, "version": version}))
    again = session_of(tmp_path, methods=["FedAvg", "FedOBP"])
    (note,) = conclude(again, again.refresh()).notes
    assert "made by pfl_lightning 0.1.0 and 0.2.0" in note


def test_the_best_of_each_client_is_not_mixed_with_its_last_value(tmp_path):
    """With very many clients, clients.csv has the last evaluation only, from which no best value follows."""
    session = session_of(tmp_path, methods=["FedAvg"], report={"select": "best_per_client"})
    (cell,) = session.refresh().cells.values()
    facts = read_facts(session.results.finished[cell.id][0])
    by_round = facts.clients["all_acc_before"]
    best = float(np.fmax.reduce(list(by_round.values())).mean())
    summary = {**facts.summary, "best_per_client_evaluations": {"acc_before": best}}
    for rounds, known in ((by_round, True), ({4: by_round[4]}, False)):
        made = facts.__class__(summary, facts.rounds, {"all_acc_before": rounds})
        outcomes, problems = outcomes_of(session.refresh(), {cell.id: (tmp_path, made)})
        assert not problems
        assert (outcomes[0].measurements[0].clients is not None) is known


def test_clients_that_no_seed_draws_are_the_same_for_all_seeds(tmp_path, monkeypatch):
    """Data with clients of their own know no `seed`. Ten clients with two seeds are ten clients, not twenty."""
    monkeypatch.delitem(comparisons.DEFAULTS["data"]["init_args"], "seed")
    monkeypatch.setattr(comparisons, "write_partition", _same_partition)
    session = session_of(tmp_path, methods=["FedAvg", "FedOBP"], seeds=[0, 1])
    text = conclude(session, session.refresh()).files[0].read_text()
    assert "All seeds have the same partition." in text
    outcomes, _ = outcomes_of(session.refresh(), session.results.finished)
    (pair,) = {result.pairs for _, _, result, _ in compare_pairs(outcomes, outcomes[:1])}
    assert pair == CLIENTS


def _same_partition(path: Path, cell: object) -> None:
    comparisons.save_file({"indices": np.arange(5)}, path / "partition.safetensors", {"data": "toy"})


def test_a_sample_of_the_clients_is_not_called_all_of_them(tmp_path):
    session = session_of(tmp_path, methods=["FedAvg", "FedOBP"], set={"loop.eval_clients": 5})
    text = conclude(session, session.refresh()).files[0].read_text()
    assert "Evaluations test a sample of the clients, drawn from the run's seed (`loop.eval_clients` 5)." in text
