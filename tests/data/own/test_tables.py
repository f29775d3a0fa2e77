"""Tables in CSV and Parquet files, of numbers and of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_lightning.data import IID, DataSpec, Dirichlet, ImageTable, SavedPartition, Table, save_partition
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.own_files import write_image_table, write_table

CPU = torch.device("cpu")
HEAD = "client,label,a,b\n"


def make(table: Path, form: type[Table] | type[ImageTable] = Table, /, **options: Any) -> Table | ImageTable:
    data = form(table, root=table.parent / "data", **options)
    data.setup(0)
    return data


def table(folder: Path, text: str, **options: Any) -> Table | ImageTable:
    (folder / "t.csv").write_text(text)
    return make(folder / "t.csv", **options)


def test_rows_become_samples(tmp_path: Path) -> None:
    data = make(write_table(tmp_path / "people.csv"), normalize="unit")
    assert (data.name, data.kind, data.spec) == ("Table_people", "classes", DataSpec((2,), 2))
    assert data.client_names == ("ann", "bob", "cem")
    assert (data.train_sizes + data.test_sizes).tolist() == [10, 10, 10]
    rows = [line.split(",") for line in (tmp_path / "people.csv").read_text().splitlines()[1:]]
    for client, name in enumerate(data.client_names):
        x, y = data.batch(torch.cat([data.train_indices(client), data.test_indices(client)]), CPU)
        found = {(int(label), round(float(a), 2), round(float(b), 2)) for label, (a, b) in zip(y, x, strict=True)}
        assert found == {(int(row[1]), float(row[2]), float(row[3])) for row in rows if row[0] == name}


def test_columns_are_standardised(tmp_path: Path) -> None:
    data = make(write_table(tmp_path / "people.csv"))
    x, _ = data.batch(torch.arange(30), CPU)
    assert torch.allclose(x.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(x.std(0, correction=0), torch.ones(2), atol=1e-5)
    own = make(tmp_path / "people.csv", normalize={"mean": [170.0, 70.0], "std": 10.0})
    raw, _ = make(tmp_path / "people.csv", normalize="unit").batch(torch.arange(30), CPU)
    torch.testing.assert_close(own.batch(torch.arange(30), CPU)[0], (raw - torch.tensor([170.0, 70.0])) / 10)


@pytest.mark.parametrize(
    "text",
    [
        "client;label;a;b\nann;x;1;2\nann;y;3;4\n",
        "client\tlabel\ta\tb\nann\tx\t1\t2\nann\ty\t3\t4\n",
        '\ufeffclient,label,a,b\r\n"ann",x,1,2\r\n\r\nann, y ,3,4',
        'label,b,client,"a"\nx,2,ann,1\ny,4,ann,3\n',
    ],
)
def test_separators_quotes_and_order_of_columns(tmp_path: Path, text: str) -> None:
    data = table(tmp_path, text, normalize="unit", features=["a", "b"])
    assert data.batch(torch.arange(2), CPU)[0].tolist() == [[1, 2], [3, 4]]
    assert data.class_names == ("x", "y")


def test_split_column_is_kept(tmp_path: Path) -> None:
    rows = "".join(f"ann,{i % 2},{i},{'test' if i % 3 == 0 else 'Train'}\n" for i in range(9))
    data = table(tmp_path, "client,label,a,split\n" + rows, split="split", normalize="unit")
    x = data.samples.x[:, 0]
    assert x[data.train_indices(0)].tolist() == [1, 2, 4, 5, 7, 8]
    assert x[data.test_indices(0)].tolist() == [0, 3, 6]
    standard = make(tmp_path / "t.csv", split="split")
    training, _ = standard.batch(torch.arange(6), CPU)
    assert abs(float(training.mean())) < 1e-6


def test_numbers_to_predict(tmp_path: Path) -> None:
    text = HEAD + "".join(f"ann,{i}.5,{2 * i},{i}\n" for i in range(8))
    data = table(tmp_path, text, kind="numbers")
    assert (data.kind, data.spec) == ("numbers", DataSpec((2,), 1))
    two = table(tmp_path, text, kind="numbers", label=["label", "b"], features=["a"], normalize="unit")
    assert two.spec == DataSpec((1,), 2)
    x, y = two.batch(torch.tensor([3]), CPU)
    assert (x.tolist(), y.tolist()) == ([[6.0]], [[3.5, 3.0]])


def test_a_partition_deals_rows_without_clients(tmp_path: Path) -> None:
    text = "label,a\n" + "".join(f"{i % 3},{i}\n" for i in range(60))
    data = table(tmp_path, text, client=None, num_clients=4, partition=Dirichlet(1.0, min_size=2))
    assert data.num_clients == 4
    assert int((data.train_sizes + data.test_sizes).sum()) == 60
    with pytest.raises(ConfigError, match=r"^partition: the data does not name its clients; set partition and num_cli"):
        make(tmp_path / "t.csv", client=None)
    with pytest.raises(ConfigError, match=r"^num_clients: it is missing"):
        make(tmp_path / "t.csv", client=None, partition=IID())


def test_partitions_of_numbers_can_be_saved(tmp_path: Path) -> None:
    text = "label,a\n" + "".join(f"{i}.25,{i}\n" for i in range(30))
    options: dict[str, Any] = {"client": None, "kind": "numbers"}
    data = table(tmp_path, text, num_clients=3, partition=IID(), **options)
    save_partition(data, tmp_path / "p.safetensors")
    again = make(tmp_path / "t.csv", partition=SavedPartition(str(tmp_path / "p.safetensors")), **options)
    assert again.num_clients == 3
    assert again.train_indices(2).equal(data.train_indices(2))
    with pytest.raises(ConfigError, match="not of this data set"):
        table(
            tmp_path, text.replace("3.25", "9.5"), partition=SavedPartition(str(tmp_path / "p.safetensors")), **options
        )


def test_whole_numbers_stay_class_numbers(tmp_path: Path) -> None:
    text = HEAD + "".join(f"ann,{label},1,2\n" for label in (0, 2, 2, 0))
    assert table(tmp_path, text).spec.num_classes == 3
    assert table(tmp_path, text, num_classes=5).spec.num_classes == 5
    assert table(tmp_path, text).samples.y.tolist() == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^source: .*t.csv is empty"),
        (HEAD, r"^source: .*t.csv has no rows"),
        ("label,a\n0,1\n", r"^client: .*t.csv has no column client; it has label, a$"),
        ("client,a\nann,1\n", r"^label: .*t.csv has no column label; it has client, a$"),
        ("client,label\nann,1\n", r"^features: .* has no columns besides label, client and split"),
        ("client,label,a,a\nann,0,1,1\n", r"^source: .* has more than one column a$"),
        (HEAD + "ann,0,1,2\nann,1,x,2\n", r"^data: .*t.csv line 3: 'x' in column a is not a number$"),
        (HEAD + "ann,0,1,2\n\nann,1,,2\n", r"^data: .*t.csv line 4: '' in column a is not a number$"),
        (HEAD + "ann,0,1,2\nann,1,nan,2\n", r"^data: .*t.csv line 3: an input is NaN or infinite$"),
        (HEAD + "ann,0,1,2\nann,1,1e60,2\n", r"^data: .*t.csv line 3: an input is NaN or infinite$"),
        (HEAD + "ann,0,1,2\nann,1,2\n", r"^data: .*t.csv line 3: 3 values for 4 columns$"),
        (HEAD + "ann,0,1,2\nann,-1,1,2\n", r"^data: .*t.csv line 3: label -1 is not a class; use whole numbers from 0"),
        (HEAD + "ann,0,1,2\nann,77,1,2\n", r"^data: .*t.csv line 3: label 77 is not a class"),
        (HEAD + "ann,0,1,2\nann,0.5,1,2\n", r"^data: .*t.csv line 3: label 0.5 is not a whole number; .* data.kind"),
        (HEAD + "ann,x,1,2\nann,,1,2\n", r"^data: .*t.csv line 3: the label is missing$"),
        (HEAD + "ann,0,1,2\n,1,1,2\n", r"^data: .*t.csv line 3: column client has no value$"),
        (HEAD + "ann,0,1,2\nann,1,1,2\nbob,1,1,2\n", r"^partition: client bob has a single sample"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        table(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "b"}, r"^data: .*t.csv line 2: '2' in column b; use train or test$"),
        ({"features": ["a", "z"]}, r"^features: .* has no column z; it has client, label, a, b$"),
        ({"features": ["a", "label"]}, r"^features: label is used as label, client or split too$"),
        ({"features": []}, r"^features: \[\] is not allowed"),
        ({"kind": "words"}, r"^kind: 'words' is not allowed"),
        ({"label": ["label", "a"]}, r"^label: .* is not allowed; use one column"),
        ({"num_classes": 1}, r"^data: .*t.csv line 3: label 1 is not a class"),
        ({"kind": "numbers", "num_classes": 2}, r"^num_classes: 2 is given, but the labels are numbers"),
        (
            {"transforms": ["RandomHorizontalFlip"]},
            r"^transforms: .* is not allowed; use null: the inputs are not images",
        ),
        ({"normalize": {"mean": [1.0, 2.0, 3.0], "std": 1.0}}, r"^normalize.mean: 3 numbers are given"),
        ({"num_clients": 2}, r"^num_clients: 2 asked for, the data set has 1 owners"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table(tmp_path, HEAD + "ann,0,1,2\nann,1,3,2\nann,1,3,2\n", **options)


def test_split_must_name_both_parts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^split: column s of .*t.csv names train samples only$"):
        table(tmp_path, "client,label,a,s\nann,0,1,train\nann,1,1,train\n", split="s")


def test_binary_files_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"client,label,a\nann,0,\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"^source: .*t.csv is not a text file in UTF-8$"):
        make(tmp_path / "t.csv")
    (tmp_path / "t.parquet").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"^source: .*t.parquet is not a Parquet file: "):
        make(tmp_path / "t.parquet")


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(arrow.table(columns), folder / "t.parquet", row_group_size=3)
    return folder / "t.parquet"


def test_parquet_gives_the_same_samples(tmp_path: Path) -> None:
    csv = make(write_table(tmp_path / "t.csv"))
    rows = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    client, label, height, weight = zip(*rows, strict=True)
    columns = {"client": client, "label": [int(v) for v in label]}
    columns |= {"height": [float(v) for v in height], "weight": [float(v) for v in weight]}
    data = make(parquet(tmp_path, columns))
    assert data.values_sha256() == csv.values_sha256()
    assert data.train_indices(1).equal(csv.train_indices(1))


def test_parquet_lists_are_tokens_or_numbers(tmp_path: Path) -> None:
    columns = {"client": [7, 7, 8, 8], "label": ["b", "a", "a", "b"], "tokens": [[1, 2], [3, 4], [5, 9], [0, 0]]}
    data = make(parquet(tmp_path, columns))
    assert data.spec == DataSpec((2,), 2, vocabulary=10)
    x, y = data.batch(torch.tensor([2]), CPU)
    assert (x.dtype, x.tolist(), y.tolist()) == (torch.int64, [[5, 9]], [0])
    assert data.client_names == ("7", "8")
    columns["tokens"] = [[0.5, 1.0]] * 4
    assert make(parquet(tmp_path, columns), normalize="unit").batch(torch.tensor([0]), CPU)[0].tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": [1.0, None, 2.0, 3.0]}, r"^data: .*t.parquet row 2: column a has no value$"),
        ({"a": [1.0, 1.0, 2.0, float("nan")]}, r"^data: .*t.parquet row 4: an input is NaN or infinite$"),
        ({"a": [[1], [1], [1, 2], [1]]}, r"^data: .*t.parquet row 3: column a has a list of another length"),
        (
            {"a": [[[1.0]], [[1.0]], [[1.0]], [[1.0]]]},
            r"^features: column a holds lists of object; use lists of numbers$",
        ),
        ({"a": [[1], [1], [-1], [1]]}, r"^data: .*t.parquet row 3: a token is negative$"),
        ({"a": ["1", "2", "3", "x"]}, r"^data: .*t.parquet row 4: 'x' in column a is not a number$"),
        ({"label": [0.0, 1.5, 0.0, 1.0]}, r"^data: .*t.parquet row \d: label .* is not a whole number"),
        ({"b": [[1]] * 4}, r"^features: column b holds lists; it must be the only feature$"),
    ],
)
def test_parquet_mistakes_name_the_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    columns = {"client": ["x", "x", "y", "y"], "label": [0, 1, 0, 1], "a": [1.0, 2.0, 3.0, 4.0], **change}
    with pytest.raises(ConfigError, match=message):
        make(parquet(tmp_path, columns))


def test_parquet_without_pyarrow_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"^source: .* needs the package pyarrow: pip install 'pfl_l"):
        make(tmp_path / "t.parquet")


def test_image_tables(tmp_path: Path) -> None:
    from PIL import Image

    path = write_image_table(tmp_path)
    data = make(path, ImageTable, split="split", normalize="unit")
    assert data.spec == DataSpec((3, 20, 24), 2)
    assert (data.client_names, data.class_names) == (("ann", "bob", "cem"), ("cat", "dog"))
    assert data.train_sizes.tolist() == [6, 6, 6]
    x, y = data.batch(data.test_indices(1)[:1], CPU)  # rows 3, 7, 11, … are test samples, rows 1, 4, 7, … are bob's
    expected = np.asarray(Image.open(tmp_path / "images" / "7.png"))
    assert np.array_equal(x[0].mul(255).round().numpy().transpose(1, 2, 0), expected)
    assert y.tolist() == [1]
    assert make(path, ImageTable, size=8).spec.shape == (3, 8, 8)


def test_image_tables_name_missing_files(tmp_path: Path) -> None:
    path = write_image_table(tmp_path)
    (tmp_path / "images" / "4.png").unlink()
    with pytest.raises(ConfigError, match=r"^data: .*images.csv line 6: there is no file .*images/4.png$"):
        make(path, ImageTable)
    with pytest.raises(ConfigError, match=r"^path: .* has no column file; it has path, label, client, split$"):
        make(path, ImageTable, path="file")
