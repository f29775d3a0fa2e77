"""The notebook of the tutorial runs from the first cell to the last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "start" / "tutorial.ipynb"


def test_all_cells_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("ROUNDS = 5", "ROUNDS = 1")
            source = source.replace(
                '"participation": 0.25, "local_epochs": 2', '"participation": 0.05, "local_epochs": 1'
            )
            exec(compile(source, "tutorial", "exec"), names)
    printed = capsys.readouterr().out
    assert "FedPer" in printed
    assert "do worse than alone" in printed
    assert "predicted [" in printed
    assert not list(tmp_path.iterdir())
