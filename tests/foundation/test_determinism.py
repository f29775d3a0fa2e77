"""What `fabric.deterministic` asks of CUDA, and when."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from pfl_lightning.cli import launch
from pfl_lightning.cli.launch import FabricConfig, make_fabric


@pytest.fixture(autouse=True)
def _as_before(monkeypatch) -> Iterator[None]:
    places = [(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32")]
    places += [(torch.backends.cuda.matmul, "allow_tf32"), (torch.utils.deterministic, "fill_uninitialized_memory")]
    before = [getattr(owner, name) for owner, name in places]
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(launch, "Fabric", lambda **settings: settings)
    torch.backends.cudnn.allow_tf32 = True
    yield
    for (owner, name), value in zip(places, before, strict=True):
        setattr(owner, name, value)
    torch.use_deterministic_algorithms(False)


def on_gpu(monkeypatch, **settings: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    make_fabric(FabricConfig(**settings), 1)


def test_a_gpu_is_asked_for_the_same_bits(monkeypatch):
    on_gpu(monkeypatch)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_workspace_that_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    on_gpu(monkeypatch)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_it_can_be_switched_off(monkeypatch):
    on_gpu(monkeypatch, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32


def test_a_cpu_needs_nothing_of_it(monkeypatch):
    make_fabric(FabricConfig(accelerator="cpu", devices=1), 1)
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
