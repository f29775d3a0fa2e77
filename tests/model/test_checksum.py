"""The checksum that compares the servers of all ranks."""

from __future__ import annotations

import torch

from pfl_lightning.model import checksum as module
from pfl_lightning.model.checksum import checksum


def test_every_place_counts_also_beyond_a_chunk(monkeypatch):
    """Entries are swapped, then whole words of two entries, within a chunk of four words and across chunks."""
    monkeypatch.setattr(module, "CHUNK", 4)
    values = torch.arange(22.0)
    found = {checksum({"vector": values})}
    for step in (1, 2):
        for place in range(0, 22 - step, step):
            order = torch.arange(22)
            order[place : place + 2 * step] = order[place : place + 2 * step].roll(step)
            found.add(checksum({"vector": values[order]}))
    assert len(found) == 1 + 21 + 10


def test_changes_do_not_cancel_out():
    """Three more in one place are not one more in the next, as in a sum of words times 1, 3, 5 and so on."""
    found = set()
    for first, second in [(0, 0), (3, 0), (0, 1), (3, -1), (-3, 1), (6, -2)]:
        words = torch.arange(64)
        words[0] += first
        words[1] += second
        found.add(checksum({"vector": words.view(torch.float32)}))
    assert len(found) == 6


def test_tensors_of_any_type_and_shape_have_one():
    tensors = {
        "bytes": torch.arange(5, dtype=torch.uint8),
        "bits": torch.tensor([True, False, True]),
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "number": torch.tensor(7),
        "empty": torch.zeros(0),
        "turned": torch.arange(6.0).view(2, 3).T,
        "not aligned": torch.arange(9.0)[1:6],
    }
    assert 0 <= checksum(tensors) < 1 << 63
    for name, tensor in tensors.items():
        if tensor.numel():
            assert checksum({**tensors, name: tensor ^ 1 if name == "bits" else tensor + 1}) != checksum(tensors), name
    assert checksum({"turned": torch.arange(6.0).view(3, 2)}) != checksum({"turned": tensors["turned"]})
