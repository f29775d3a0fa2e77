"""Electricity load: from files, or generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pfl_lightning.data import Load
from pfl_lightning.data.series import read_series
from pfl_lightning.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture
def zones(tmp_path: Path) -> Path:
    """Two files of one series each; EAST counts 0 … 19 but its lines are out of order."""
    hours = [f"2004-12-{1 + h // 24:02}-{h % 24:02}" for h in range(20)]
    stamps = [f"{day[:10]} {day[11:]}:00:00" for day in hours]
    east = [f"{stamp},{float(value)}" for value, stamp in enumerate(stamps)]
    (tmp_path / "EAST_hourly.csv").write_text("\n".join(["Datetime,EAST_MW", *east[10:], *east[:10]]) + "\n")
    west = [f"{stamp},{100 - 2 * value}" for value, stamp in enumerate(stamps)]
    (tmp_path / "WEST_hourly.csv").write_text("\r\n".join(["Datetime,WEST_MW", *west]))
    (tmp_path / "notes.md").write_text("not a series")
    return tmp_path


def made(**settings: object) -> Load:
    data = Load(**settings)  # type: ignore[arg-type]
    data.setup(0)
    return data


def test_a_folder_with_a_series_per_file(zones):
    """Training part: the first 18 of 20 values, 0 … 17, scaled by 17. Windows of 3: 15 to train on, 2 to test on."""
    data = made(source=zones)
    assert data.num_clients == 2
    assert data.train_sizes.tolist() == [15, 15]
    assert data.test_sizes.tolist() == [2, 2]
    x, y = data.batch(data.train_indices(0), CPU)
    assert (17 * x[0]).tolist() == pytest.approx([0, 1, 2])
    assert (17 * y[0]).tolist() == pytest.approx([3])
    x, y = data.batch(data.test_indices(0), CPU)
    assert (17 * x[-1]).tolist() == pytest.approx([16, 17, 18])
    assert (17 * y[:, 0]).tolist() == pytest.approx([18, 19])
    x, y = data.batch(data.train_indices(1), CPU)  # 100, 98 … 66 in the training part
    assert (x[0] * 34 + 66).tolist() == pytest.approx([100, 98, 96])
    x, y = data.batch(data.test_indices(1), CPU)
    assert (y[:, 0] * 34 + 66).tolist() == pytest.approx([64, 62])


def test_a_file_with_a_series_per_column_gaps_and_decimal_commas(tmp_path):
    file = tmp_path / "wide.txt"
    file.write_text('"";"MT_001";"MT_002"\n"2012-01-01 00:15:00";1,5;\n"2012-01-01 00:30:00";2,5;7\n')
    series = read_series(file)
    assert {name: values.tolist() for name, values in series.items()} == {"MT_001": [1.5, 2.5], "MT_002": [7.0]}


def test_some_of_the_series_and_their_latest_values(zones):
    data = made(source=zones, num_clients=1, records=10, window=2)
    assert data.num_clients == 1
    assert (data.train_sizes + data.test_sizes).tolist() == [8]


def test_the_official_file_is_found_and_meters_that_came_later_are_left_out(tmp_path):
    rows = [f'"{time}";{i % 7},0;{"0,0" if i < 150 else "1,5"}' for i, time in enumerate(_quarters(200))]
    (tmp_path / "LD2011_2014.txt").write_text("\n".join(['"";"MT_001";"MT_002"', *rows]) + "\n")
    data = made(root=tmp_path)
    assert data.name == "Load_LD2011_2014"
    assert data.num_clients == 1


def _quarters(count: int) -> list[str]:
    start = np.datetime64("2012-01-01T00:15")
    return [str(start + 15 * i).replace("T", " ") + ":00" for i in range(count)]


def test_without_files_it_is_generated_and_says_so(tmp_path):
    data = made(root=tmp_path, num_clients=3)
    assert data.name == "Load_generated"
    assert data.num_clients == 3
    assert int((data.train_sizes + data.test_sizes)[0]) == 8760 - 3
    x, y = data.batch(data.train_indices(1), CPU)
    assert float(x.min()) == 0.0
    assert float(torch.cat([x.flatten(), y.flatten()]).max()) == 1.0
    day = torch.corrcoef(torch.stack([y[:-24, 0], y[24:, 0]]))[0, 1]
    half_day = torch.corrcoef(torch.stack([y[:-12, 0], y[12:, 0]]))[0, 1]
    assert day > 0.6 > half_day
    assert torch.equal(made(root=tmp_path, num_clients=3).samples.y, data.samples.y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "nowhere"}, "data.source: nowhere does not exist"),
        ({"num_clients": 3}, "num_clients: 3 is not allowed; use at most 2, the number of series"),
        ({"window": 18}, "too few for window 18"),
        ({"window": 0}, "window: 0 is not allowed"),
        ({"test_share": 0.0}, "test_share: 0.0 is not allowed"),
        ({"records": 4}, "records: 4 is not allowed"),
    ],
)
def test_bad_settings_are_refused(zones, settings, message):
    with pytest.raises(ConfigError, match=message):
        made(**{"source": zones, **settings})


@pytest.mark.parametrize("text", ["", "a,b\n1,x\n", "a,b\n"])
def test_a_file_without_numbers_is_refused(tmp_path, text):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"data.source: .*"):
        read_series(tmp_path)
