"""Electricity load: from files, or generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pfl_lightning.data
from pfl_lightning.data import ElectricityLoad
from pfl_lightning.data.series import most_distinct, read_series
from pfl_lightning.foundation.errors import ConfigError

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


def made(**settings: object) -> ElectricityLoad:
    data = ElectricityLoad(**settings)  # type: ignore[arg-type]
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
    assert data.name == "ElectricityLoad_LD2011_2014"
    assert data.num_clients == 1


def _quarters(count: int) -> list[str]:
    start = np.datetime64("2012-01-01T00:15")
    return [str(start + 15 * i).replace("T", " ") + ":00" for i in range(count)]


def test_without_files_it_is_generated_and_says_so(tmp_path):
    data = made(root=tmp_path, num_clients=3)
    assert data.name == "ElectricityLoad_generated"
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"time,a,a\n1,2,3\n", "bad.csv has two columns of the same name"),
        (b"time,\xff\n1,2\n", "bad.csv cannot be read as text"),
    ],
)
def test_an_unusable_file_is_named_in_one_line(tmp_path, content, message):
    (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_series(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_csv_files_is_refused(tmp_path):
    (tmp_path / "notes.md").write_text("not a series")
    with pytest.raises(ConfigError, match=r"there is no series in .*; put CSV files there, such as AEP_hourly.csv"):
        read_series(tmp_path)


def test_series_are_selected_by_name_in_the_given_order(zones):
    data = made(source=zones, series=["WEST_MW", "EAST_MW"])
    assert data.client_names == ("WEST_MW", "EAST_MW")
    assert made(source=zones, series=["WEST_MW"]).num_clients == 1
    with pytest.raises(ConfigError, match=r"^data.series: no series is called WEST; names are like WEST_MW, EAST_MW$"):
        made(source=zones, series=["WEST"])
    with pytest.raises(ConfigError, match=r"series: .* is not allowed; use different names, or null"):
        made(source=zones, series=["WEST_MW", "WEST_MW"])


def test_most_distinct_starts_with_the_farthest_pair_and_then_avoids_neighbours():
    """Points on a line at 0, 1, 6, 7, 10: the pair is 0 and 10, then 6 (4 from 10; 7 is 3 away), then 7 or 1: 1."""
    line = [np.array([place, 0.0]) for place in (0.0, 1.0, 6.0, 7.0, 10.0)]
    assert most_distinct(line, 1) == [0]
    assert most_distinct(line, 2) == [0, 4]
    assert most_distinct(line, 3) == [0, 2, 4]
    assert most_distinct(line, 5) == [0, 1, 2, 3, 4]


def test_most_distinct_compares_the_latest_values():
    assert most_distinct([np.array([9.0, 9.0, 1.0]), np.array([1.0]), np.array([5.0])], 2) == [0, 2]


def test_distinct_series_are_chosen_by_their_training_part_alone(tmp_path):
    """`twin` differs from `base` in its last values only, which are tested on and must not decide."""
    base = np.tile([0.0, 1.0], 20)
    twin, other = base.copy(), 1 - base
    twin[36:] = 50.0
    lines = [f"{i},{a},{b},{c}" for i, (a, b, c) in enumerate(zip(base, twin, other, strict=True))]
    (tmp_path / "three.csv").write_text("\n".join(["time,base,twin,other", *lines]))
    data = made(source=tmp_path, num_clients=2, choice="distinct")
    assert data.client_names == ("base", "other")
    assert data.num_clients == 2


def test_the_former_class_name_still_resolves_but_is_not_listed():
    assert pfl_lightning.data.Load is ElectricityLoad
    assert "Load" not in pfl_lightning.data.__all__
    with pytest.raises(AttributeError, match="no attribute 'Lode'"):
        pfl_lightning.data.Lode  # noqa: B018


def test_validation_windows_come_from_the_training_part(zones):
    data = made(source=zones, validation_share=0.2)
    assert data.train_sizes.tolist() == [12, 12]
    assert data.validation_sizes.tolist() == [3, 3]
    assert data.test_sizes.tolist() == [2, 2]
    assert made(source=zones, held_out_clients=0.5).held_out.numel() == 1
