"""Collectives: tables, broadcasts, and client states that follow their clients."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.comm import ranks
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.foundation.errors import RunError
from tests.helpers.ranks import run_on_ranks


def test_rows_filled_by_different_ranks_come_together_bit_for_bit():
    values = torch.tensor([[0.1, -2.5e-300], [float("nan"), 1e300], [3.0, -0.0]], dtype=torch.float64)

    def work(fabric: Fabric) -> Tensor:
        table = torch.zeros_like(values)
        for row in range(3):
            if row % 2 == fabric.global_rank:
                table[row] = values[row]
        return Comm(fabric).merge_table(table)

    for table in run_on_ranks(work, 2):
        assert torch.equal(table.view(torch.int64), values.view(torch.int64))


@pytest.mark.parametrize("world", [1, 3])
def test_every_tensor_reaches_every_rank_in_the_order_of_the_clients(world):
    owner = {9: 0, 2: 1 % world, 5: 2 % world, 6: 0}

    def work(fabric: Fabric) -> list[tuple[int, list[float]]]:
        local = {
            client: torch.full((2,), float(client)) for client, rank in owner.items() if rank == fabric.global_rank
        }
        return [(c, value.tolist()) for c, value in Comm(fabric).broadcast_each(local, owner, torch.empty(2))]

    assert run_on_ranks(work, world) == [[(c, [float(c)] * 2) for c in (2, 5, 6, 9)]] * world


@pytest.mark.parametrize("in_flight", [0, 1 << 28])
def test_states_follow_their_clients(in_flight, monkeypatch):
    def work(fabric: Fabric) -> dict[int, dict[str, Tensor]]:
        rank = fabric.global_rank
        states = {
            10 * rank + i: {"theta": torch.arange(4) + 100 * rank + i, "visits": torch.tensor(i)} for i in range(2)
        }
        Comm(fabric).move_states(states, [(0, 0, 1), (11, 1, 0), (1, 0, 2), (20, 2, 1)])
        return states

    monkeypatch.setattr(ranks, "IN_FLIGHT_BYTES", in_flight)
    held = run_on_ranks(work, 3)
    assert [sorted(states) for states in held] == [[11], [0, 10, 20], [1, 21]]
    assert torch.equal(held[0][11]["theta"], torch.arange(4) + 101)
    assert int(held[1][20]["visits"]) == 0


def test_ranks_that_differ_are_named_on_every_rank():
    def work(fabric: Fabric) -> tuple[str, bool]:
        comm = Comm(fabric)
        comm.require_equal(5, "the model")
        try:
            comm.require_equal(fabric.global_rank // 2, "the model")
        except RunError as error:
            return str(error), error.collective
        return "no error", False

    assert run_on_ranks(work, 4) == [("the model differs between rank 0 and rank 2, 3", True)] * 4
