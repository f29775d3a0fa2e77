"""States in memory and on disk: the same states, whatever the bound."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.foundation.state import State
from pfl_lightning.store import StoreConfig
from pfl_lightning.store.client_store import OBJECT_BYTES, TieredStore, View
from pfl_lightning.store.config import parse_bytes

STATE_BYTES = 400 + 8 + 2 * OBJECT_BYTES


def state_of(client: int) -> State:
    return {"theta": torch.arange(100.0) + client, "visits": torch.tensor(client)}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kept", [0, 1, 3, 10])
def test_what_was_put_comes_back_and_memory_stays_below_the_bound(kept, tmp_path):
    store = TieredStore(kept * STATE_BYTES, tmp_path)
    states = View(store, "kept")
    for client in range(6):
        states[client] = state_of(client)
        assert store.used == min(client + 1, kept) * STATE_BYTES
    assert (store.on_disk > 0) == (kept < 6)
    states[2] = state_of(20)
    del states[4]
    assert list(states) == [0, 1, 2, 3, 5]
    assert len(states) == 5
    for client, state in states.items():
        assert same(state, state_of(20 if client == 2 else client))
    assert same(states.pop(5), state_of(5))
    assert 5 not in states
    assert 4 not in states
    assert states.get(5) is None


@pytest.mark.parametrize("kept", [0, 2, 10])
def test_pending_states_take_the_place_of_others_or_vanish(kept, tmp_path):
    store = TieredStore(kept * STATE_BYTES, tmp_path)
    states, pending = View(store, "kept"), View(store, "pending")
    for client in range(3):
        states[client] = state_of(client)
    for client in (1, 7):
        pending[client] = state_of(10 * client)
    assert same(states[1], state_of(1)), "not before the round is whole"
    states.take_all(pending)
    assert not pending
    assert sorted(states) == [0, 1, 2, 7]
    assert [int(states[c]["visits"]) for c in sorted(states)] == [0, 10, 2, 70]
    pending[2] = state_of(99)
    pending.clear()
    assert same(states[2], state_of(2))
    states.clear()
    assert store.used == store.on_disk == 0


def test_tensors_in_any_memory_order_are_kept(tmp_path):
    store = TieredStore(0, tmp_path)
    weight = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    store.put(("kept", 0), {"weight": weight, "empty": torch.empty(0), "bits": torch.tensor([1], dtype=torch.uint8)})
    found = store.get(("kept", 0))
    assert torch.equal(found["weight"], weight)
    assert found["empty"].shape == (0,)
    assert found["bits"].dtype == torch.uint8


def test_a_full_disk_is_told_in_one_line(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    states = View(TieredStore(0, tmp_path), "kept")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(
        RunError, match=r"client states cannot be kept in .* \(store\.folder\): No space left on device$"
    ):
        states[0] = state_of(0)
    assert same(states[0], state_of(0)), "the state itself is not lost"


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("512mb", 512 * 10**6), ("0", 0), (12, 12), ("7B", 7), ("1KiB", 1024)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size
    assert StoreConfig(text).memory_bytes == size


@pytest.mark.parametrize("text", ["", "GB", "2 apples", "-1", "-1GB", "1e9", "2GBs"])
def test_sizes_that_cannot_be_read(text):
    with pytest.raises(ConfigError, match=r"^memory: .* is not allowed; use bytes, or a number with a unit"):
        StoreConfig(text)


def test_a_folder_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"^folder: .*nowhere' is not allowed; use a directory that exists$"):
        StoreConfig(folder=Path(tmp_path / "nowhere"))
