"""Published cells take the place of runs: the same table, byte for byte, and nothing that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl_lightning.compare.cell_json import read_cells
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.conclusion import Conclusion, conclude
from pfl_lightning.compare.session import Session
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.comparisons import ToyResolver, experiment, write_run

CONTENT = {"methods": ["FedAvg", "FedOBP"], "seeds": [0, 1], "report": {"select": "best"}}


def session_of(folder: Path, cells: Path | None = None, **changes) -> Session:
    published = read_cells(cells) if cells else None
    return Session(Comparison(experiment(**{**CONTENT, **changes}), ToyResolver()), folder, published)


@pytest.fixture
def made(tmp_path) -> tuple[Path, Conclusion]:
    """A comparison whose runs are finished. Returns its folder."""
    session = session_of(tmp_path / "made")
    for cell in session.refresh().cells.values():
        write_run(session.results.folder / cell.id[:8], cell, clients=True)
    return tmp_path / "made", conclude(session, session.refresh())


@pytest.mark.parametrize("select", ["best", "last", "validation", "best_per_client", "mean"])
def test_published_cells_make_the_same_files(tmp_path, select):
    changes = {"report": {"select": select}, "set": {"data.validation_share": 0.2}}
    session = session_of(tmp_path / "made", **changes)
    best = {"best_per_client_evaluations": {"acc_before": 0.8, "acc_finetuned": 0.9}}
    for cell in session.refresh().cells.values():
        write_run(session.results.folder / cell.id[:8], cell, clients=True, **best)
    first = conclude(session, session.refresh())
    again = session_of(tmp_path / "again", tmp_path / "made" / "cells", **changes)
    stage = again.refresh()
    assert not again.missing(stage)
    second = conclude(again, stage)
    assert first.files
    assert not second.problems
    assert [path.read_bytes() for path in first.files] == [path.read_bytes() for path in second.files]
    for path in (tmp_path / "made" / "cells").iterdir():
        assert (tmp_path / "again" / "cells" / path.name).read_bytes() == path.read_bytes()


def test_another_config_is_not_taken(tmp_path, made):
    session = session_of(tmp_path / "again", made[0] / "cells", set={"loop.batch_size": 11})
    assert len(session.missing(session.refresh())) == len(session.refresh().cells) > 0


def test_a_run_goes_before_a_published_cell(tmp_path, made):
    session = session_of(tmp_path / "again", made[0] / "cells")
    cell = next(iter(session.refresh().cells.values()))
    run = write_run(session.results.folder / "run", cell, clients=True)
    session.refresh()
    assert session.results.finished[cell.id][0] == run


def test_a_published_cell_with_another_partition_is_refused(tmp_path, made):
    path = next((made[0] / "cells").glob("FedOBP-seed-0*"))
    path.write_text(path.read_text().replace('"partition_sha256": "', '"partition_sha256": "f'))
    session = session_of(tmp_path / "again", made[0] / "cells")
    missing = session.missing(session.refresh())
    assert [cell.label for cell, _ in missing] == ["FedOBP, seed 0"]
    assert "partition" in session.results.refused[path]


def test_a_published_cell_of_changed_code_is_refused(tmp_path, made, monkeypatch):
    path = next((made[0] / "cells").glob("FedOBP-seed-0*"))
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "sources": {"mine.Method": "old"}}))
    monkeypatch.setattr("pfl_lightning.compare.run_facts.source_digest", lambda name: "new")
    session = session_of(tmp_path / "again", made[0] / "cells")
    assert [cell.label for cell, _ in session.missing(session.refresh())] == ["FedOBP, seed 0"]
    assert "mine.Method has changed" in session.results.refused[path]


def test_cells_of_earlier_versions_are_left_out(made):
    path = next((made[0] / "cells").iterdir())
    content = json.loads(path.read_text())
    del content["records"]
    path.write_text(json.dumps(content))
    assert content["id"] not in read_cells(made[0] / "cells")


def test_two_runs_of_one_config_are_refused(made):
    """The last one would win in silence."""
    path = next((made[0] / "cells").glob("FedOBP-seed-0*"))
    content = json.loads(path.read_text())
    content["run"]["seconds"] = 1e6
    (path.parent / "zz-another.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"zz-another.json and {path.name} are two runs of the same config"):
        read_cells(path.parent)


def test_a_config_that_was_edited_is_refused(made):
    path = next((made[0] / "cells").iterdir())
    content = json.loads(path.read_text())
    content["config"]["loop"]["rounds"] = 3
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"{path.name}: its id is not that of its config"):
        read_cells(made[0] / "cells")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"records": 1}', '{"records": {}, "config": {}, "id": 0}'])
def test_a_damaged_file_is_one_line(made, text):
    path = made[0] / "cells" / "damaged.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"damaged\.json is not the file of a cell"):
        read_cells(made[0] / "cells")


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        read_cells(tmp_path / "none")
