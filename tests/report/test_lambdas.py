"""What Learn2pFed has learned, as data and picture."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithms import Learn2pFed
from pfl_lightning.report.lambdas import LambdaRecorder, draw_lambdas, learned_lambdas
from tests.ranks import run_on_ranks
from tests.toy import toy_loop


def record(fabric: Fabric, folder: Path, **algorithm: object) -> np.ndarray:
    loop = toy_loop(fabric, Learn2pFed(cells=3, warm_start=True, **algorithm), rounds=2, participation=0.4)  # type: ignore[arg-type]
    loop.on_round_end = [LambdaRecorder(folder, private=[0])]
    loop.fit()
    return learned_lambdas(loop)


@pytest.mark.parametrize("world", [1, 2])
def test_rows_are_clients_and_the_last_cell_does_not_count(tmp_path, world):
    """Every Lambda has left its initial value 1 but those of the last cell; clients never drawn have none."""
    tables = run_on_ranks(lambda fabric: record(fabric, tmp_path), world)
    table = tables[0]
    assert table.shape == (7, 27)
    seen = np.isfinite(table).all(axis=1)
    assert 3 <= seen.sum() < 7
    assert np.isnan(table[~seen]).all()
    assert np.abs(table[seen] - 1).max() == pytest.approx(0.01, abs=0.01)
    for other in tables:
        np.testing.assert_array_equal(other, table)
    with (tmp_path / "lambdas.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0][:2] == ["client", "lambda_0"]
    values = np.array([[float(cell) for cell in row] for row in rows[1:]])
    assert values[:, 0].tolist() == list(range(7))
    np.testing.assert_allclose(values[:, 1:], table, rtol=1e-8)
    assert (tmp_path / "lambdas.png").stat().st_size > 5000


def test_the_picture_names_private_parameters_and_writes_the_numbers():
    figure = draw_lambdas(np.array([[1.0, 0.25], [np.nan, 0.5]]), private=[1])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1\nprivate"]
    assert sorted(text.get_text() for text in axes.texts) == ["0.25", "0.50", "1.00"]
    assert not draw_lambdas(np.ones((30, 30))).axes[0].texts
