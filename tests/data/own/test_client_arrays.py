"""Arrays in .npz files: one per client, or one with an array that names the clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_lightning.data import ClientArrays, DataSpec
from pfl_lightning.data.own.npz_file import NpzFile
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.own_files import write_arrays

CPU = torch.device("cpu")
X, Y = np.arange(24.0).reshape(8, 3), np.arange(8) % 2


def make(source: Path, **options: Any) -> ClientArrays:
    data = ClientArrays(source, root=source.parent / "data", **options)
    data.setup(0)
    return data


def one(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "all.npz", **{"x": X, "y": Y, "client": ["a"] * 4 + ["b"] * 4, **arrays})
    return folder / "all.npz"


def test_one_file_for_each_client(tmp_path: Path) -> None:
    data = make(write_arrays(tmp_path / "clients"), normalize="unit")
    assert (data.spec, data.client_names) == (DataSpec((5,), 2), ("ann", "bob", "cem"))
    with np.load(tmp_path / "clients" / "bob.npz") as bob:
        mine = torch.cat([data.train_indices(1), data.test_indices(1)]).sort().values
        x, y = data.batch(mine, CPU)
        assert x.equal(torch.from_numpy(bob["x"]).float())
        assert y.equal(torch.from_numpy(bob["y"]))


def test_clients_with_test_arrays(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    for number in (1, 2):
        np.savez_compressed(
            tmp_path / "clients" / f"{number}.npz", x_train=X * number, y_train=Y, x_test=-X[:2] * number, y_test=Y[:2]
        )
    data = make(tmp_path / "clients", normalize="unit")
    assert (data.train_sizes.tolist(), data.test_sizes.tolist()) == ([8, 8], [2, 2])
    assert data.batch(data.test_indices(1), CPU)[0].tolist() == (-2 * X[:2]).tolist()


def test_one_file_with_clients_and_split(tmp_path: Path) -> None:
    split = ["train", "train", "train", "test"] * 2
    data = make(one(tmp_path, client=np.array([10, 10, 10, 10, 9, 9, 9, 9]), split=split), normalize="unit")
    assert data.client_names == ("9", "10")
    assert data.batch(data.train_indices(0), CPU)[0].tolist() == X[4:7].tolist()
    assert data.batch(data.test_indices(1), CPU)[0].tolist() == X[3:4].tolist()


@pytest.mark.parametrize(
    ("x", "spec", "stored"),
    [
        (np.zeros((8, 4, 5), dtype=np.uint8), DataSpec((1, 4, 5), 2), torch.uint8),
        (np.zeros((8, 4, 5, 3), dtype=np.uint8), DataSpec((3, 4, 5), 2), torch.uint8),
        (np.zeros((8, 4, 5, 7), dtype=np.uint8), DataSpec((4, 5, 7), 2), torch.float32),
        (np.zeros((8, 6), dtype=np.uint8), DataSpec((6,), 2), torch.float32),
        (np.zeros((8, 6), dtype=bool), DataSpec((6,), 2), torch.float32),
        (np.arange(16, dtype=np.int16).reshape(8, 2), DataSpec((2,), 2, 16), torch.int64),
        (np.zeros((8, 2, 3)), DataSpec((2, 3), 2), torch.float32),
        (np.asfortranarray(X), DataSpec((3,), 2), torch.float32),
        (X.astype(">f4"), DataSpec((3,), 2), torch.float32),
    ],
)
def test_types_decide_what_inputs_are(tmp_path: Path, x: Any, spec: DataSpec, stored: torch.dtype) -> None:
    data = make(one(tmp_path, x=x), normalize="unit")
    assert (data.spec, data.samples.x.dtype) == (spec, stored)
    batch, _ = data.batch(torch.arange(3), CPU)
    assert tuple(batch.shape[1:]) == spec.shape
    if x.ndim == 2 and stored == torch.float32:
        assert batch.tolist() == x[:3].tolist()


def test_numbers_with_several_axes_share_one_mean(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3, 2, (8, 2, 3))
    batch, _ = make(one(tmp_path, x=x)).batch(torch.arange(8), CPU)
    expected = (x - x.mean()) / x.std()
    torch.testing.assert_close(batch.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)


def test_labels_decide_what_is_learned(tmp_path: Path) -> None:
    assert make(one(tmp_path, y=np.array(["no", "yes"])[Y])).class_names == ("no", "yes")
    numbers = make(one(tmp_path, y=Y * 0.5))
    assert (numbers.kind, numbers.spec.num_classes, numbers.samples.y.shape) == ("numbers", 1, (8, 1))
    assert make(one(tmp_path, y=X)).spec.num_classes == 3
    assert make(one(tmp_path, y=Y.astype(bool))).samples.y.tolist() == Y.tolist()


def test_labels_that_start_at_1_are_mentioned(tmp_path: Path) -> None:
    data = make(one(tmp_path, y=Y + 1))
    assert data.spec.num_classes == 3
    assert data.warnings == (
        "data: the smallest label is 1, so no sample has class 0; class numbers start at 0, and labels that are names "
        "are numbered for you",
    )
    for fine in (Y, np.array(["1", "2"])[Y], Y + 0.5):
        assert make(one(tmp_path, y=fine)).warnings == ()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X[:7]}, r"^data: .*all.npz: x has 7 rows, y has 8$"),
        ({"client": ["a"] * 7}, r"^data: .*all.npz: client has the shape \(7,\), x has 8 rows$"),
        ({"split": ["train"] * 7 + ["dev"]}, r"^data: .*all.npz row 7 of x: split is 'dev'; use train or test$"),
        ({"split": ["train"] * 8}, r"^data: .*all.npz: split names train samples only$"),
        ({"y": np.array([0, 1, 2, -1] * 2)}, r"^data: .*all.npz row 3 of x: label -1 is not a class"),
        ({"y": np.array([-3, -2] * 4)}, r"row 0 of x: label -3 is not a class; use whole numbers from 0 on, or names$"),
        ({"y": np.array([0, 1, 2, 99] * 2)}, r"^data: .*all.npz row 3 of x: label 99 is not a class"),
        ({"y": np.array([0.5, np.nan] * 4)}, r"^data: .*all.npz row 1 of x: the target is NaN or infinite$"),
        ({"y": np.zeros((8, 2), dtype=int)}, r"^data: .*all.npz row 0 of x: a label has the shape \(2,\)"),
        ({"y": Y.astype(complex)}, r"^data: .*all.npz: labels are complex128"),
        ({"y": np.float64(3)}, r"^data: .*all.npz: the array y is a single number"),
        ({"x": np.where(X == 10, np.inf, X)}, r"^data: .*all.npz row 3 of x: an input is NaN or infinite$"),
        ({"x": -X.astype(int)}, r"^data: .*all.npz row 0 of x: a token is negative$"),
        ({"x": X[:, 0]}, r"^data: .*all.npz: inputs have the shape \(8,\); each sample needs at least one axis$"),
        ({"x": X.astype(complex)}, r"^data: .*all.npz: inputs are complex128; use numbers$"),
        ({"x": np.array([["a"]] * 8, dtype=object)}, r"^source: [^ ]*all.npz: the array x holds Python objects"),
        ({"x": X[:0], "y": Y[:0], "client": []}, r"^source: there are no samples$"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make(one(tmp_path, **arrays))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_files_of_clients_must_match(tmp_path: Path) -> None:
    folder = write_arrays(tmp_path / "clients")
    for arrays, message in (
        (
            {"x": np.zeros((4, 6)), "y": Y[:4]},
            r"^data: .*zoe.npz: inputs are float32 \[6\], those of the first file are",
        ),
        ({"x": np.zeros((4, 5)), "y": Y[:4] * 0.5}, r"^data: .*zoe.npz row 0 of x: this label is of another type"),
        ({"x": np.zeros((4, 5))}, r"^source: .*zoe.npz has no array y; it has x$"),
        ({"x": np.zeros((0, 5)), "y": Y[:0]}, r"^source: .*zoe.npz has no samples; leave such clients out$"),
        ({"x_train": np.zeros((4, 5)), "y_train": Y[:4]}, r"^source: .*ann.npz has the array x, other clients have"),
    ):
        np.savez(folder / "zoe.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            make(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"^source: .*empty holds no .npz files"):
        make(tmp_path / "empty")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = one(tmp_path, x=np.random.default_rng(0).normal(size=(8, 300)))
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=r"^source: .*all.npz is not an .npz file: "):
        make(path)
    content[2000] ^= 1  # in x, which its checksum tells
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^data: .*all.npz is damaged: Bad CRC-32"):
        make(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_in_pieces(tmp_path: Path, save: Any) -> None:
    x = np.random.default_rng(0).normal(size=(11, 2, 3))
    save(tmp_path / "a.npz", x=x, f=np.asfortranarray(x))
    file = NpzFile(tmp_path / "a.npz")
    for name in ("x", "f"):
        pieces = list(file.blocks(name, 4))
        assert [len(piece) for piece in pieces] == [4, 4, 3]
        assert np.array_equal(np.concatenate(pieces), x)
        assert np.array_equal(file.read(name), x)
