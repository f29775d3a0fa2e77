"""tools/check/drawn_clients.py takes a comparison apart by whether clients were ever drawn."""

import json
from pathlib import Path

import pytest

from tools.check.drawn_clients import main


def write(folder: Path, method: str, metric: str, clients: list[float | None], seed: int = 0) -> None:
    cell = {"method": method, "metric": metric, "seed": seed, "clients": clients}
    (folder / f"{method}-{metric}-{seed}.json").write_text(json.dumps(cell))


def test_means_of_drawn_and_other_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "Local", "all_acc_before", [0.5, 0.7, 0.1])
    write(tmp_path, "FedAvg", "all_acc_before", [0.8, 0.8, 0.9])
    write(tmp_path, "Ditto", "all_acc_after", [0.6, 0.8, None])
    main([str(tmp_path)])
    said = capsys.readouterr().out
    assert "seed 0: 1 of 3 clients were never drawn" in said
    assert "| Local | 60.0 | 10.0 |  |" in said
    assert "| FedAvg | 80.0 | 90.0 | +20.0 [" in said
    assert "| Ditto | 70.0 |  | +10.0 [+10.0, +10.0] |" in said


def test_a_client_is_averaged_over_its_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, shift in enumerate((0.0, 0.2)):
        write(tmp_path, "Local", "all_acc_before", [0.5, 0.5, 0.5], seed)
        write(tmp_path, "Ditto", "all_acc_after", [0.5 + shift, 0.7 - shift, None], seed)
    main([str(tmp_path)])
    assert "+10.0 [+10.0, +10.0]" in capsys.readouterr().out


def test_cells_that_disagree_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "Ditto", "all_acc_after", [0.6, None])
    write(tmp_path, "PFedMe", "all_acc_after", [None, 0.6])
    with pytest.raises(SystemExit, match="other clients drawn"):
        main([str(tmp_path)])


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no cells"):
        main([str(tmp_path)])
