"""A sum over clients that gradients flow through."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric

from pfl_lightning.comm import Comm
from pfl_lightning.differentiable import differentiable_sum
from tests.ranks import run_on_ranks

SHARES = {1: [[0, 1, 2]], 2: [[2, 0], [1]], 3: [[1], [], [0, 2]]}


def total_and_gradients(fabric: Fabric) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Rows x_i of three clients, s = Σ x_i², loss Σ_i c_i · s with weights c_i only client i's rank knows."""
    clients = SHARES[fabric.world_size][fabric.global_rank]
    comm = Comm(fabric)
    comm.open_round(1, SHARES[fabric.world_size])
    generator = torch.Generator().manual_seed(3)
    x, c = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator)
    rows = x[clients].requires_grad_()
    copies = differentiable_sum(comm, rows * rows, clients)
    (c[clients] * copies).sum().backward()
    return {client: (copies[i].detach(), rows.grad[i]) for i, client in enumerate(clients)}


def test_values_and_gradients_on_1_2_and_3_ranks():
    """d loss / d x_i = 2 x_i Σ_j c_j: the weights of other ranks' clients count."""
    generator = torch.Generator().manual_seed(3)
    x, c = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator)
    answers = {
        world: {k: v for a in run_on_ranks(total_and_gradients, world) for k, v in a.items()} for world in SHARES
    }
    for client in range(3):
        total, gradient = answers[1][client]
        assert torch.allclose(total, (x * x).sum(0), rtol=1e-14)
        assert torch.allclose(gradient, 2 * x[client] * c.sum(0), rtol=1e-13)
        for world in (2, 3):
            assert torch.equal(answers[world][client][0], total)
            assert torch.equal(answers[world][client][1], gradient)


def test_long_rows_are_added_in_parts(monkeypatch):
    monkeypatch.setattr("pfl_lightning.differentiable.CHUNK", 6)
    comm = Comm(Fabric(accelerator="cpu", devices=1))
    comm.open_round(1, [[0, 1, 2]])
    rows = torch.arange(21, dtype=torch.float64).view(3, 7)
    assert torch.equal(differentiable_sum(comm, rows, [0, 1, 2]), rows.sum(0).expand(3, 7))
