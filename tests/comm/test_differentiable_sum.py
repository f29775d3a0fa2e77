"""A sum over clients that gradients flow through."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric

from pfl_lightning.comm.differentiable_sum import differentiable_sum
from tests.helpers.ranks import run_on_ranks
from tests.helpers.uploads import uploads_of

SHARES = {1: [[0, 1, 2]], 2: [[2, 0], [1]], 3: [[1], [], [0, 2]]}


def total_and_gradients(fabric: Fabric) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Rows x_i of three clients, s = Σ x_i², loss Σ_i c_i · s with weights c_i only client i's rank knows."""
    uploads = uploads_of(fabric, SHARES[fabric.world_size])
    clients = list(uploads.local)
    generator = torch.Generator().manual_seed(3)
    x, c = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator)
    rows = x[clients].requires_grad_()
    copies = differentiable_sum(uploads, rows * rows)
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
    monkeypatch.setattr("pfl_lightning.comm.differentiable_sum.CHUNK", 6)
    uploads = uploads_of(Fabric(accelerator="cpu", devices=1), [[0, 1, 2]])
    rows = torch.arange(21, dtype=torch.float64).view(3, 7)
    assert torch.equal(differentiable_sum(uploads, rows), rows.sum(0).expand(3, 7))
