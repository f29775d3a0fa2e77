from __future__ import annotations

import pytest
import torch

from pfl_lightning.foundation.transfer import to_device, to_host

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
def test_states_come_back_equal_and_share_nothing(device):
    state = {
        "theta": torch.randn(1000, generator=torch.Generator().manual_seed(0)),
        "mask": torch.arange(125, dtype=torch.uint8),
        "visits": torch.tensor(3),
        "empty": torch.empty(0),
    }
    there = to_device(state, torch.device(device))
    assert {tensor.device.type for tensor in there.values()} == {device}
    kept = {name: tensor.clone() for name, tensor in state.items()}
    for tensor in state.values():
        tensor.zero_()
    back = to_host(there)
    for tensor in there.values():
        tensor.zero_()
    for name, tensor in back.items():
        assert tensor.device.type == "cpu"
        assert tensor.dtype == kept[name].dtype
        assert torch.equal(tensor, kept[name])
