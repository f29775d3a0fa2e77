"""Mistakes in a data set of one's own are one line each, before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pfl_lightning.data import DataSpec, FederatedData, ImageData, Samples
from pfl_lightning.data.partitions import Parts
from pfl_lightning.foundation.errors import ConfigError

X = torch.arange(24.0).view(8, 3)
Y = torch.arange(8) % 2
PARTS = Parts(np.arange(8), np.array([3, 2]), np.array([1, 2]))


class Own(FederatedData):
    """Two clients; every piece can be replaced by a wrong one."""

    spec = DataSpec((3,), 2)

    def __init__(self, x: Any = X, y: Any = Y, parts: Any = PARTS, spec: Any = None) -> None:
        super().__init__(2)
        self.x, self.y, self.dealt = x, y, parts
        if spec is not None:
            self.spec = spec

    def load(self) -> Samples:
        return Samples(self.x, self.y, 0)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        return self.dealt  # type: ignore[no-any-return]


def parts(indices: Any = PARTS.indices, train: Any = (3, 2), test: Any = (1, 2)) -> Parts:
    return Parts(np.asarray(indices), np.array(train, dtype=np.int64), np.array(test, dtype=np.int64))


def changed(tensor: torch.Tensor, at: Any, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[at] = value
    return tensor


def test_good_data_passes_and_says_what_it_holds() -> None:
    data = Own()
    data.setup(0)
    assert (data.kind, data.warnings) == ("classes", ())
    numbers = Own(y=torch.ones(8, 1), spec=DataSpec((3,), 1))
    numbers.setup(0)
    assert numbers.kind == "numbers"
    tokens = Own(x=torch.ones(8, 3, dtype=torch.int64))
    tokens.setup(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec": (3,)}, "Own has no spec; set spec = DataSpec"),
        ({"spec": DataSpec((3,), 0)}, "the spec of Own has num_classes 0; use 1 or more"),
        ({"x": X.numpy()}, "Own.load must return Samples"),
        ({"x": X[:7]}, "Own has 7 inputs and 8 targets; the numbers must be equal"),
        ({"x": X[:0], "y": Y[:0]}, "Own has no samples"),
        ({"x": X.double()}, r"Own has inputs float64 \[8, 3\]; use float32"),
        ({"x": X.to(torch.uint8)}, "Own has inputs uint8 .* a subclass of ImageData"),
        ({"x": X[:, :2]}, r"Own has inputs float32 \[8, 2\], but its spec says \(3,\)"),
        ({"x": changed(X, (5, 1), float("nan"))}, "Own has NaN or infinite inputs at sample 5"),
        ({"x": changed(X, (6, 2), float("inf"))}, "Own has NaN or infinite inputs at sample 6"),
        ({"y": changed(Y, 3, -1)}, "Own has label -1 at sample 3; labels must be whole numbers from 0 to 1"),
        ({"y": changed(Y, 7, 2)}, "Own has label 2 at sample 7; labels must be"),
        ({"y": Y.int()}, r"Own has targets int32 \[8\]; classes must be int64"),
        ({"y": Y[:, None]}, r"Own has targets int64 \[8, 1\]; classes must be int64"),
        ({"y": Y.float()}, r"Own has targets float32 \[8\]; numbers to predict must be float32 \[N, 2\]"),
        ({"y": torch.ones(8, 2).double()}, r"Own has targets float64 \[8, 2\]; numbers to predict"),
        ({"y": changed(torch.ones(8, 2), (4, 0), float("nan"))}, "Own has NaN or infinite targets at sample 4"),
        ({"parts": tuple(PARTS)}, "Own.draw must return Parts"),
        ({"parts": Parts(list(range(8)), *PARTS[1:])}, "indices of Own's partition must be a one-dim"),  # type: ignore[arg-type]
        ({"parts": parts(np.arange(8, dtype=np.int32))}, "indices of Own's partition must be a one-dim"),
        ({"parts": parts(train=(3, 2, 0))}, "train_sizes of Own's partition must have 2 entries"),
        ({"parts": parts(test=(4, -1))}, "test_sizes of Own's partition must have 2 entries of 0 or more"),
        ({"parts": parts(np.arange(7))}, "Own's partition has 7 indices, its sizes add up to 8"),
        ({"parts": parts([0, 1, 2, 3, 4, 5, 8, 7])}, "client 1 has index 8; Own has the samples 0 to 7"),
        ({"parts": parts([0, -1, 2, 3, 4, 5, 6, 7])}, "client 0 has index -1; Own has"),
        ({"parts": parts([0, 1, 2, 3, 4, 5, 6, 4])}, "client 1 both trains and is tested on sample 4 of Own"),
        ({"parts": parts(train=(0, 5))}, "client 0 of Own has no training sample"),
        ({"parts": parts(train=(4, 4), test=(0, 0))}, "no client of Own has a test sample"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^data: {message}") as caught:
        Own(**options).setup(0)
    assert "\n" not in str(caught.value)


def test_clients_may_share_samples_with_each_other() -> None:
    Own(parts=parts([0, 1, 2, 3, 3, 1, 0, 2])).setup(0)


def test_unusual_clients_are_mentioned() -> None:
    data = Own(parts=parts(train=(1, 4), test=(0, 3)))
    data.setup(0)
    assert data.warnings == (
        "data: 1 of 2 clients, client 0 first, have no test sample and will not be tested",
        "data: 1 of 2 clients, client 0 first, have a single training sample; BatchNorm cannot train on it",
    )


def test_images_must_be_bytes_of_the_right_shape() -> None:
    class Pictures(ImageData):
        spec = DataSpec((3, 2, 2), 2)
        mean, std = (0.0,) * 3, (1.0,) * 3

        def load(self) -> Samples:
            return Samples(torch.zeros(8, 3, 2, 2, dtype=torch.uint8), Y, 0)

    with pytest.raises(ConfigError, match=r"^data: Pictures has inputs .*; its images must be uint8 \[N, 2, 2, 3\]"):
        Pictures(num_clients=2).setup(0)


def test_own_batches_may_store_anything() -> None:
    class Encoded(Own):
        def batch(self, indices: Any, device: Any, augment_seed: int | None = None) -> Any:
            x, y = super().batch(indices, device)
            return x.float(), y

    Encoded(x=X.to(torch.uint8)).setup(0)


def test_values_are_part_of_the_identity() -> None:
    def identity(x: torch.Tensor = X, y: torch.Tensor = Y) -> str:
        data = Own(x, y)
        data.setup(0)
        return data.values_sha256()

    others = {identity(changed(X, (7, 2), 0.5)), identity(y=changed(Y, 0, 1)), identity(-X)}
    assert len(others) == 3
    assert identity() == identity(X.clone())
    assert identity() not in others
