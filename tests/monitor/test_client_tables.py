"""The tables about clients and layers, read back."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedAvg, FedPer
from pfl_lightning.callback import Callback
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.monitor import client_tables, round_table
from pfl_lightning.monitor.client_tables import ClientTables, facts_table
from pfl_lightning.monitor.round_table import RoundTable
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import TRAIN_SIZES, toy_loop

FOUR = {"rounds": 4, "eval_every": 2, "participation": 0.4}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Keep(Callback):
    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round_end(self, record: RoundRecord) -> None:
        self.records.append(record)


def fit(fabric: Fabric, run_dir: Path, algorithm: Any = None, **config: Any) -> tuple[Any, list[RoundRecord]]:
    loop, keep = toy_loop(fabric, algorithm or FedPer(), **{**FOUR, **config}), Keep()
    loop.fit([keep, ClientTables(run_dir, loop)])
    return loop, keep.records


@pytest.fixture
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def test_every_evaluation_has_a_row_per_client_with_exact_values(tmp_path: Path, fabric: Fabric) -> None:
    loop, records = fit(fabric, tmp_path)
    rows = read(tmp_path / "clients.csv")
    assert [(row["round"], row["client"]) for row in rows] == [(r, str(c)) for r in ("2", "4") for c in range(7)]
    moments = ["all_acc_before", "all_loss_before", "all_acc_after", "all_loss_after"]
    assert list(rows[0]) == ["round", "client", *moments, "visits", "samples", "up_bytes", "down_bytes"]
    for row in rows:
        record = records[int(row["round"]) - 1]
        for name in moments:
            expected = record.per_client[name][int(row["client"])]
            assert row[name] == ("" if math.isnan(expected) else repr(float(expected)))
    assert any(row["all_acc_after"] == "" for row in rows), "a client that was never drawn has no such value"
    for name, totals in loop.history.client_totals.items():
        assert [int(row[name]) for row in rows[7:]] == totals.tolist()


def test_two_ranks_write_the_same_tables_as_one(tmp_path: Path) -> None:
    for world in (1, 2):
        (tmp_path / str(world)).mkdir()
        run_on_ranks(lambda fabric, world=world: fit(fabric, tmp_path / str(world)) and None, world)
    for name in ("client_facts.csv", "clients.csv", "personal.csv"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_facts_are_sizes_and_labels(tmp_path: Path, fabric: Fabric) -> None:
    loop, _ = fit(fabric, tmp_path, rounds=1)
    rows = read(tmp_path / "client_facts.csv")
    assert [int(row["train_samples"]) for row in rows] == TRAIN_SIZES
    assert {row["test_samples"] for row in rows} == {"5"}
    labels = [[int(row[f"label_{label}"]) for label in range(3)] for row in rows]
    assert labels == loop.data.label_counts().tolist()


def test_names_of_clients_and_classes_are_used(fabric: Fabric) -> None:
    data = toy_loop(fabric, FedAvg()).data
    data.client_names, data.class_names = tuple("abcdefg"), ("cat", "dog, small", "cow")
    header, first, *_ = facts_table(data)
    assert header[:2] == ["client", "name"]
    assert first[:2] == ["0", "a"]
    assert header[-3:] == ["label_cat", "label_dog, small", "label_cow"]


def test_personal_entries_are_counted_per_tensor(tmp_path: Path, fabric: Fabric) -> None:
    """FedPer keeps the head: 8 · 3 weights and 3 biases, and nothing else."""
    fit(fabric, tmp_path, rounds=2)
    rows = read(tmp_path / "personal.csv")
    assert {row["round"] for row in rows} == {"1", "2"}
    counts = {row["tensor"]: (int(row["size"]), float(row["personal"])) for row in rows}
    assert counts["net.head.weight"] == (24, 24.0)
    assert counts["net.head.bias"] == (3, 3.0)
    assert counts["net.body.0.weight"] == (48, 0.0)


def test_without_personal_entries_there_is_no_table_of_them(tmp_path: Path, fabric: Fabric) -> None:
    fit(fabric, tmp_path, FedAvg())
    assert {path.name for path in tmp_path.iterdir()} == {"client_facts.csv", "clients.csv"}


def test_a_resumed_run_drops_rounds_that_are_trained_again(tmp_path: Path, fabric: Fabric) -> None:
    fit(fabric, tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in ("clients.csv", "personal.csv")}
    loop = toy_loop(fabric, FedPer(), **FOUR)
    for _ in range(3):
        loop.round()
    with (tmp_path / "clients.csv").open("a") as file:
        file.write("4,3,0.1")  # half a row
    loop.fit([ClientTables(tmp_path, loop)])
    assert {name: (tmp_path / name).read_bytes() for name in whole} == whole


@pytest.mark.parametrize("name", ["clients.csv", "personal.csv"])
@pytest.mark.parametrize("damage", ["none", "flip", "truncate", "delete"])
def test_a_damaged_table_is_reported_when_the_run_is_resumed(
    name: str, damage: str, tmp_path: Path, fabric: Fabric, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = toy_loop(fabric, FedPer(), **FOUR)
    tables = ClientTables(tmp_path, loop)
    loop.fit([tables])
    saved, content = tables.state_dict(), (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content + b"5,half a r")  # rows that a kill left are no damage
    if damage == "flip":
        (tmp_path / name).write_bytes(content[:50] + b"x" + content[51:])
    elif damage == "truncate":
        (tmp_path / name).write_bytes(content[:50])
    elif damage == "delete":
        (tmp_path / name).unlink()
    capfd.readouterr()
    ClientTables(tmp_path, loop).load_state_dict(saved)
    err = capfd.readouterr().err
    assert err.startswith(f"pfl-fit: warning: {tmp_path / name} was damaged; ") if damage != "none" else err == ""


@pytest.mark.parametrize("broken", ["1,x,0.5", "1,0,0.\ufffd5", "one,0,0.5", "1,0"])
def test_a_row_that_nobody_can_read_is_dropped_when_the_run_is_resumed(broken: str, tmp_path: Path) -> None:
    """The report of the run would be refused for ever."""
    path = tmp_path / "clients.csv"
    path.write_text(f"round,client,all_acc_before\n1,0,\n{broken}\n2,0,0.5\n")
    RoundTable(path).cut(2)
    assert path.read_text() == "round,client,all_acc_before\n1,0,\n2,0,0.5\n"


def test_of_many_clients_only_the_last_evaluation_stays(
    tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_tables, "MOST_CLIENTS", 6)
    fit(fabric, tmp_path)
    assert {row["round"] for row in read(tmp_path / "clients.csv")} == {"4"}


def test_a_table_of_another_version_gets_the_columns_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text("round,client,old\n1,0,7\n")
    RoundTable(path).append(["round", "client", "new"], [["2", "0", "9"]])
    assert path.read_text() == "round,client,new\n1,0,\n2,0,9\n"


def test_a_disk_that_takes_half_of_the_rows_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clients.csv"
    path.write_text("round,client\n1,0\n")
    write = round_table.os.write
    monkeypatch.setattr(round_table.os, "write", lambda handle, data: write(handle, data[:2]))
    with pytest.raises(RunError, match=r"clients\.csv: the disk is full"):
        RoundTable(path).append(["round", "client"], [["2", "0"]])
    assert path.read_text() == "round,client\n1,0\n"


def test_values_are_not_rounded(tmp_path: Path) -> None:
    value = np.float64(0.1) + np.float64(0.2)
    record = RoundRecord(3, {}, {"all_acc_before": np.array([value, np.nan]), "acc_before": np.array([1.0])})
    totals = {name: np.array([1, 2]) for name in client_tables.CLIENT_TOTALS}
    header, first, second = client_tables.evaluation_table(record, totals)
    assert header[:3] == ["round", "client", "all_acc_before"]
    assert float(first[2]) == value
    assert second[2] == ""
