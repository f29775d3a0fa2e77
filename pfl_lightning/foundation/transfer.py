"""Tensors between the CPU and the device where they are used. A GPU's copies pass through pinned memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device. A GPU fetches it from pinned memory by itself, while this process goes on."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_device(state: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copies of a client state on the device."""
    if device.type != "cuda":
        return {name: tensor.to(device, copy=True) for name, tensor in state.items()}
    return {name: send(tensor, device) for name, tensor in state.items()}


def to_host(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of a client state in ordinary CPU memory. A GPU fills pinned memory first, and is waited for once."""
    device = next((tensor.device for tensor in state.values() if tensor.is_cuda), None)
    if device is None:
        return {name: tensor.detach().clone() for name, tensor in state.items()}
    arriving = {name: _pinned_like(tensor).copy_(tensor.detach(), non_blocking=True) for name, tensor in state.items()}
    torch.cuda.current_stream(device).synchronize()
    return {name: tensor.clone() for name, tensor in arriving.items()}


def _pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
