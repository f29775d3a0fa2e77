"""Any torch data set, torchvision class or HuggingFace data set on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from pfl_lightning.data import IID, DataSpec, FederatedData, FromDataset
from pfl_lightning.foundation.errors import ConfigError

CPU = torch.device("cpu")
X, Y = torch.arange(24.0).view(12, 2), torch.arange(12) % 3


class Items(Dataset[Any]):
    """A list as a data set; counts how often it is read."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.reads = items, 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


class Numbers(Items):
    """Made from its class path in a config."""

    def __init__(self, size: int = 12, scale: float = 1.0) -> None:
        super().__init__([(torch.tensor([scale * i]), i % 2) for i in range(size)])


class Stream(IterableDataset[Any]):
    """Has no length."""

    def __iter__(self) -> Any:
        return iter(())


def make(folder: Path, dataset: Any, **options: Any) -> FromDataset:
    options = {"num_clients": 3, "partition": IID(), "normalize": "unit", **options}
    data = FromDataset(dataset, root=folder / "data", **options)
    data.setup(0)
    return data


def test_pairs_of_tensors(tmp_path: Path) -> None:
    data = make(tmp_path, TensorDataset(X, Y))
    assert (data.name, data.spec) == ("FromDataset_TensorDataset", DataSpec((2,), 3))
    x, y = data.batch(torch.arange(12), CPU)
    assert x.equal(X)
    assert y.equal(Y)
    assert data.num_clients == 3


def test_official_test_part(tmp_path: Path) -> None:
    from pfl_lightning.data import ClientDirichlet

    partition = ClientDirichlet(100.0, train_size=3, test_size=1)
    data = make(tmp_path, TensorDataset(X, Y), test_dataset=TensorDataset(-X[:6], Y[:6]), partition=partition)
    assert data.samples.num_train == 12
    for client in range(3):
        assert (data.batch(data.train_indices(client), CPU)[0] >= 0).all()
        assert (data.batch(data.test_indices(client), CPU)[0] <= 0).all()


def test_dicts_with_a_client(tmp_path: Path) -> None:
    items = [{"pixels": np.full((4, 4), i, dtype=np.uint8), "kind": "ab"[i % 2], "writer": i // 4} for i in range(12)]
    keys = {"inputs": "pixels", "label": "kind", "client": "writer"}
    data = make(tmp_path, Items(items), partition=None, num_clients=None, **keys)
    assert (data.spec, data.class_names, data.client_names) == (DataSpec((1, 4, 4), 2), ("a", "b"), ("0", "1", "2"))
    mine = torch.cat([data.train_indices(2), data.test_indices(2)])
    assert sorted(data.samples.x[mine, 0, 0, 0].tolist()) == [8, 9, 10, 11]


def test_positions_of_a_tuple(tmp_path: Path) -> None:
    items = [("x" if i < 6 else "y", i % 2, [float(i)]) for i in range(12)]
    data = make(tmp_path, Items(items), partition=None, num_clients=None, client=0, label=1, inputs=2)
    assert data.client_names == ("x", "y")
    assert data.samples.x.flatten().tolist() == list(range(12))


@pytest.mark.parametrize(
    ("x", "shape", "stored"),
    [
        (Image.new("RGB", (5, 4)), (3, 4, 5), torch.uint8),
        (Image.new("L", (5, 4)), (1, 4, 5), torch.uint8),
        (torch.zeros(3, 4, 5, dtype=torch.uint8), (3, 4, 5), torch.uint8),
        (torch.zeros(1, 4, 3, dtype=torch.uint8), (1, 4, 3), torch.uint8),
        (np.zeros((4, 5, 3), dtype=np.uint8), (3, 4, 5), torch.uint8),
        (torch.zeros(4, 5, dtype=torch.uint8), (1, 4, 5), torch.uint8),
        (torch.zeros(3, 4, 5), (3, 4, 5), torch.float32),
        (torch.tensor([1, 2, 3]), (3,), torch.int64),
        ([1, 2, 3], (3,), torch.int64),
        (2.5, (1,), torch.float32),
    ],
)
def test_inputs_of_any_kind(tmp_path: Path, x: Any, shape: tuple[int, ...], stored: torch.dtype) -> None:
    data = make(tmp_path, Items([(x, 0), (x, 1)] * 4))
    assert (data.spec.shape, data.samples.x.dtype) == (shape, stored)
    assert tuple(data.batch(torch.arange(2), CPU)[0].shape[1:]) == shape


def test_images_get_one_size(tmp_path: Path) -> None:
    items = [(Image.new("RGB", (5 + i, 4)), 0) for i in range(8)] + [(torch.zeros(3, 9, 9, dtype=torch.uint8), 1)]
    with pytest.raises(
        ConfigError, match=r"^data: sample 1 of Items has the shape \[4, 6, 3\], .*; for images set data.s"
    ):
        make(tmp_path, Items(items))
    assert make(tmp_path, Items(items), size=4).spec.shape == (3, 4, 4)


def test_torchvision_classes_from_yaml(tmp_path: Path) -> None:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--data", type=FederatedData)
    config = parser.parse_string(
        "data: {class_path: FromDataset, init_args: {num_clients: 2, partition: {class_path: IID}, size: 8, dataset: "
        "{class_path: torchvision.datasets.FakeData, init_args: {size: 12, image_size: [3, 9, 9], num_classes: 2}}, "
        f"root: {tmp_path}}}}}"
    )
    data = parser.instantiate(parser.parse_string(parser.dump(config))).data
    data.setup(0)
    assert (data.name, data.spec.shape, len(data.samples.y)) == ("FromDataset_FakeData", (3, 8, 8), 12)
    for path, name in (("Numbers", "FromDataset_Numbers"), ("make_items", "FromDataset_make_items")):
        text = f"{{class_path: FromDataset, init_args: {{num_clients: 2, partition: IID, dataset: {__name__}.{path}}}}}"
        own = parser.instantiate(parser.parse_string(f"data: {text}")).data
        own.root = tmp_path
        own.setup(0)
        assert (own.name, own.spec.shape) == (name, (1,))


def make_items() -> Dataset[Any]:
    return Numbers()


def test_class_names_of_the_data_set(tmp_path: Path) -> None:
    dataset = Numbers()
    dataset.classes = ["even", "odd", "neither"]  # type: ignore[attr-defined]
    data = make(tmp_path, dataset)
    assert (data.class_names, data.spec.num_classes) == (("even", "odd", "neither"), 3)


def test_objects_are_read_at_every_start_unless_kept(tmp_path: Path) -> None:
    for _ in range(2):
        dataset = Numbers()
        data = make(tmp_path, dataset)
        assert dataset.reads == 12
        assert list((tmp_path / "data" / "prepared").iterdir()) == []  # the open file has no name
    assert data.batch(torch.tensor([11]), CPU)[0].tolist() == [[11]]
    for reads in (12, 0):
        dataset = Numbers()
        make(tmp_path, dataset, keep_as="numbers")
        assert dataset.reads == reads
    assert make(tmp_path, Numbers(scale=2.0), keep_as="numbers2").samples.x[3] == 6


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (Items([]), {}, r"^dataset: Items has \[0\] samples; no part may be empty$"),
        (Stream(), {}, r"^dataset: Stream has no length or no items"),
        (lambda: 1 / 0, {}, r"^dataset: <lambda> cannot be made: division by zero$"),
        (lambda: 5, {}, r"^dataset: int has no length or no items"),
        (Items([(1.0, 0), OSError("disk on fire")]), {}, r"^data: sample 1 of Items cannot be read: disk on fire$"),
        (Items([(1.0, 0), 7]), {}, r"^inputs: sample 1 of Items has no value 0; it has the type int$"),
        (Items([{"a": 1, "b": 0}]), {}, r"^inputs: sample 0 of Items has no value 0; it has the keys a, b$"),
        (Items([(1.0, 0)] * 4), {"label": 2}, r"^label: sample 0 of Items has no value 2; it has 2 values$"),
        (Items([(1.0, 0), (1.0, -1)]), {}, r"^data: sample 1 of Items: label -1 is not a class"),
        (Items([(1.0, 0), (float("nan"), 1)]), {}, r"^data: sample 1 of Items: an input is NaN or infinite$"),
        (Items([(1.0, 0), ([1.0, 2.0], 1)]), {}, r"^data: sample 1 of Items has the shape \[2\], the first sample has"),
        (Items([(1.0, [0.5]), (1.0, [1.0, 2.0])]), {}, r"^data: labels of Items differ in shape$"),
        (
            Items([((torch.rand(3), torch.rand(3)), 0)] * 4),
            {},
            r"^inputs: sample 0 of Items has a tuple of inputs; join them into one array$",
        ),
        (
            Items([({"a": 1.0}, 0)] * 4),
            {},
            r"^inputs: sample 0 of Items has a dict of inputs; join them into one array$",
        ),
        (Items([("text", 0)] * 4), {}, r"^data: Items: inputs are <U4; use numbers$"),
        (None, {}, r"^dataset: give either dataset or source"),
        (Numbers(), {"source": "there"}, r"^dataset: give either dataset or source"),
        (Numbers(), {"partition": None, "num_clients": None}, r"^partition: the data does not name its clients"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make(tmp_path, dataset, **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.tmp"))


def hugging_face(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    features = {
        "tokens": datasets.Sequence(datasets.Value("int32")),
        "mood": datasets.ClassLabel(names=["bad", "good"]),
    }
    rows = {"tokens": [[i, i + 1] for i in range(12)], "mood": [i % 2 for i in range(12)], "user": ["u", "v"] * 6}
    features["user"] = datasets.Value("string")
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    return datasets.DatasetDict({"train": made, "test": made.select(range(4))}), made


KEYS = {"inputs": "tokens", "label": "mood", "client": "user", "partition": None, "num_clients": None}


def test_hugging_face_on_disk(tmp_path: Path) -> None:
    both, made = hugging_face(tmp_path)
    made.save_to_disk(tmp_path / "reviews")
    data = make(tmp_path, None, source=tmp_path / "reviews", **KEYS)
    assert (data.name, data.spec) == ("FromDataset_reviews", DataSpec((2,), 2, vocabulary=13))
    assert (data.class_names, data.client_names) == (("bad", "good"), ("u", "v"))
    assert len(list((tmp_path / "data" / "prepared").iterdir())) == 1
    both.save_to_disk(tmp_path / "both")
    split = make(tmp_path, None, source=tmp_path / "both", **KEYS)
    assert (split.train_sizes.tolist(), split.test_sizes.tolist()) == ([6, 6], [2, 2])


def test_hugging_face_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    hugging_face(tmp_path)[1].save_to_disk(tmp_path / "reviews")
    with pytest.raises(ConfigError, match=r"^label: .*reviews has no column 1; it has tokens, mood, user$"):
        make(tmp_path, None, source=tmp_path / "reviews", inputs="tokens")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"^source: .*other is not a data set that save_to_disk wrote: "):
        make(tmp_path, None, source=tmp_path / "other", **KEYS)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"^source: a HuggingFace data set needs the package datasets: pip install"):
        make(tmp_path, None, source=tmp_path / "reviews", **KEYS)
