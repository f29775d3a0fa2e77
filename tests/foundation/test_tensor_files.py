"""Our safetensors writer: the library reads every type and shape back, and nothing else appears in the directory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from pfl_lightning.foundation.tensor_files import DTYPES, write_tensors


def test_every_type_and_shape_is_read_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = torch.randint(0, 100, (3, 5))
    tensors = {str(dtype): values.to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 4), "transposed": values.T, "π": values[1:2]}
    write_tensors(tmp_path / "file", tensors)
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_tensors_that_share_memory_can_be_written(tmp_path: Path) -> None:
    values = torch.arange(6.0)
    write_tensors(tmp_path / "file", {"all": values, "part": values[2:4]})
    assert torch.equal(load_file(tmp_path / "file")["part"], torch.tensor([2.0, 3.0]))


def test_metadata_checksum_and_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written = write_tensors(path, {"x": torch.ones(3)}, {"about": "me"})
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert written.size == path.stat().st_size
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"about": "me"}


def test_only_our_temporary_name_appears_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *names: (seen.append(os.listdir(tmp_path)), replace(*names)))
    write_tensors(tmp_path / "file", {"x": torch.ones(3)})
    assert seen == [[".file.tmp"]]
    assert os.listdir(tmp_path) == ["file"]
