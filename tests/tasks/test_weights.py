"""Initial weights from a file: what is loaded, what is refused, and that no code of a file runs."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.tasks.weights import load_weights


def net(outputs: int = 3, width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, outputs))


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["safetensors", "torch", "checkpoint of Lightning"])
def test_each_form_of_file_is_loaded(tmp_path: Path, form: str) -> None:
    given, path = net().state_dict(), tmp_path / ("a.safetensors" if form == "safetensors" else "a.pt")
    if form == "safetensors":
        save_file(given, path)
    else:
        torch.save(given if form == "torch" else {"epoch": 3, "state_dict": given}, path)
    mine = net()
    load_weights(mine, str(path), head="1")
    for name, tensor in mine.state_dict().items():
        assert tensor.equal(given[name]), name


def test_a_head_with_other_outputs_keeps_its_start(tmp_path: Path) -> None:
    given, mine = net(outputs=5).state_dict(), net()
    start = mine[1].weight.detach().clone()
    save_file(given, tmp_path / "a.safetensors")
    load_weights(mine, str(tmp_path / "a.safetensors"), head="1")
    assert mine[0].weight.equal(given["0.weight"])
    assert mine[1].weight.equal(start)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (net(width=5).state_dict(), r"does not fit the net: 0.weight is \[5, 2\], not \[4, 2\]$"),
        (nn.Sequential(nn.Linear(2, 4)).state_dict(), r"does not fit the net: it has no 1.bias$"),
        (
            {**net().state_dict(), "2.bias": torch.zeros(1)},
            r"does not fit the net: it has 2.bias, which the net has not$",
        ),
        ({"epoch": 3}, r"is not a state_dict; save net.state_dict\(\)$"),
        (net(), r"holds more than tensors; save a state_dict$"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, given: Any, message: str) -> None:
    torch.save(given, tmp_path / "a.pt")
    with pytest.raises(ConfigError, match=r"^task.weights: .*a.pt " + message):
        load_weights(net(), str(tmp_path / "a.pt"), head="1")


@pytest.mark.parametrize("protocol", ["torch", "2", "4"])
def test_code_in_a_file_does_not_run(tmp_path: Path, protocol: str) -> None:
    """The refusal is one line, without warnings of torch about the pickle."""
    path, content = tmp_path / "a.pt", {"0.weight": Touch(tmp_path / "ran")}
    if protocol == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=int(protocol)))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with pytest.raises(ConfigError, match=r"^task.weights: .*a.pt holds more than tensors; save a state_dict$"):
            load_weights(net(), str(path), head="1")
    assert not found
    assert not (tmp_path / "ran").exists()
