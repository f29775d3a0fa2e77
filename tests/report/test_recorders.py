"""Figures' data on the command line: what --report asks for, and pfl-report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pfl_lightning.cli import fit, report

SMALL = [
    "--loop.participation", "0.03", "--task.net", "SmallCNN", "--loop.rounds", "2", "--loop.eval_every", "0",
    "--fabric.devices", "1",
]  # fmt: skip


def run(run_dir: Path, *options: str) -> int:
    return fit.run([*options, *SMALL, "--run_dir", str(run_dir)])


def test_masks_are_recorded_and_drawn_for_any_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "run", "--algorithm", "FedPURIN", "--report.masks", "true") == 0
    made = {path.name for path in (tmp_path / "run").glob("masks*")}
    pictures = {"masks_iou_net.head.png", "masks_spread.png", "masks_heat.png"}
    assert made == {"masks.safetensors", "masks_iou_net.head.csv", *pictures}
    capsys.readouterr()
    report.main([str(tmp_path / "run"), "--layer", "net.body.conv1", "--clients", "0", "99"])
    assert "masks_iou_net.body.conv1.png" in capsys.readouterr().out
    matrix = np.loadtxt(tmp_path / "run/masks_iou_net.body.conv1.csv", delimiter=",", skiprows=1)
    assert len(matrix) >= 2  # those who have personal parameters
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_array_equal(np.diag(matrix), 1)


def test_without_masks_there_is_nothing_to_compare(tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--algorithm", "FedAvg", "--report.masks", "true") == 0
    made = {path.name for path in (tmp_path / "run").glob("masks*")}
    assert made == {"masks.safetensors", "masks_spread.png", "masks_heat.png"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--layer", "net.tail"], "layer: 'net.tail' is not in the model"),
        (["--clients", "100"], "clients: 100 is not a client of the run; allowed: 0 to 99"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(tmp_path, capsys, options, line):
    assert run(tmp_path / "run", "--algorithm", "FedPURIN", "--report.masks", "true") == 0
    for argv, text in (
        ([str(tmp_path / "run"), *options], line),
        ([str(tmp_path), *options], "run: there is no masks"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            report.main(argv)
        assert left.value.code == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert text in said


def test_lambdas_are_of_learn2pfed_only(tmp_path, capsys):
    options = ["--data", "Polynomial", "--data.num_clients", "3", "--task", "Regression", "--task.net", "Powers"]
    few = [
        "--loop.rounds",
        "2",
        "--fabric.devices",
        "1",
        "--report.lambdas",
        "true",
        "--run_dir",
        str(tmp_path / "run"),
    ]
    assert fit.run(["--algorithm", "Learn2pFed", *options, *few]) == 0
    assert (tmp_path / "run/lambdas.csv").read_text().startswith("client,lambda_0,")
    assert (tmp_path / "run/lambdas.png").stat().st_size > 5000
    assert run(tmp_path / "other", "--algorithm", "FedAvg", "--report.lambdas", "true") == 2
    assert "report.lambdas: FedAvg has none; allowed with Learn2pFed only" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
