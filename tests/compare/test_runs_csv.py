"""runs.csv has a line for every run behind the table, the same from runs and from published cells."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from pfl_lightning.compare.conclusion import conclude
from tests.compare.test_published import session_of
from tests.helpers.comparisons import write_run


def test_every_run_has_a_line_with_the_facts_of_its_cell(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    session = session_of(folder)
    for number, cell in enumerate(session.refresh().cells.values()):
        facts = {"model_sha256": f"m{number}", "git_commit": f"g{number}", "seconds": 90.0}
        write_run(session.results.folder / cell.id[:8], cell, clients=True, **facts)
    conclude(session, session.refresh())
    text = (folder / "runs.csv").read_text()
    lines = {(line["method"], line["seed"]): line for line in csv.DictReader(text.splitlines())}
    cells = [json.loads(path.read_text()) for path in (folder / "cells").glob("*.json")]
    assert len(lines) == len(cells) > 2
    for cell in cells:
        line = lines[cell["method"], str(cell["seed"])]
        assert float(line["value"]) == cell["value"]
        assert (line["config"], int(line["round"]), line["minutes"]) == (cell["id"], cell["round"], "1.5")
        assert (line["model_sha256"], line["git_commit"]) == (cell["run"]["model_sha256"], cell["run"]["git_commit"])
    again = session_of(tmp_path / "again", folder / "cells")
    conclude(again, again.refresh())
    assert (tmp_path / "again" / "runs.csv").read_text() == text
