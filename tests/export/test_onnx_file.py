"""ONNX files predict as torch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfl_lightning.data.federated import DataSpec
from pfl_lightning.export import onnx_file
from pfl_lightning.export.inputs import ScaledImages
from pfl_lightning.export.onnx_file import largest_difference, write_onnx
from pfl_lightning.export.predictor import NeighbourVote, Predictor, detached_copy
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.nets import CNN, LSTM, MLP, ResNet8

for package in onnx_file.PACKAGES:
    pytest.importorskip(package)


def images(channels: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (5, size, size, channels), dtype=torch.uint8, generator=generator)


def scaled(channels: int) -> ScaledImages:
    return ScaledImages(torch.full((channels,), 100.0), torch.full((channels,), 0.01))


def vote() -> NeighbourVote:
    net = CNN(DataSpec((1, 28, 28), 10))
    with torch.no_grad():
        features = net.body(torch.linspace(-1, 1, 7 * 28 * 28).view(7, 1, 28, 28))
    return NeighbourVote(net, features, torch.arange(7), weight=0.5, k=3, sigma=0.1, num_classes=10)


CASES = {
    "CNN": (lambda: CNN(DataSpec((1, 28, 28), 10)), scaled(1), images(1, 28)),
    "ResNet8": (lambda: ResNet8(DataSpec((3, 32, 32), 10)), scaled(3), images(3, 32)),
    "MLP": (lambda: MLP(DataSpec((5,), 3)), nn.Identity(), torch.linspace(-2, 2, 25).view(5, 5)),
    "kNN-Per": (vote, scaled(1), images(1, 28)),
    "LSTM": (lambda: LSTM(DataSpec((6,), 1)), nn.Identity(), torch.linspace(0, 1, 30).view(5, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_torch_for_any_batch(tmp_path: Path, name: str) -> None:
    make, inputs, samples = CASES[name]
    torch.manual_seed(0)
    model = Predictor(inputs, detached_copy(make())).eval()
    assert write_onnx(model, samples, tmp_path / "model.onnx") < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert largest_difference(model, samples[:3], tmp_path / "model.onnx") < 1e-4


def test_a_file_that_differs_from_torch_is_refused_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "largest_difference", lambda *_: 2e-4)
    monkeypatch.setattr(torch.onnx, "export", lambda model, inputs, path, **_: path.write_bytes(b"x"))
    with pytest.raises(RunError, match=r"onnx: outputs differ from torch's by 2\.0e-04, more than 1e-04"):
        write_onnx(nn.Identity(), torch.ones(3, 2), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_that_onnx_cannot_express_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("advice") from ValueError("\x1b[96mfirst line\x1b[0m\nsecond line")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(RunError, match=r"^onnx: torch cannot turn this model into ONNX: first line$"):
        write_onnx(nn.Identity(), torch.ones(3, 2), tmp_path / "model.onnx")
