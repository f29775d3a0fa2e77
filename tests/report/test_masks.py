"""What a run's masks leave behind, and the pictures of it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from matplotlib.figure import Figure

from pfl_lightning.algorithms import FedPURIN, FedSelect
from pfl_lightning.errors import ConfigError
from pfl_lightning.report.mask_record import MaskHistory, MaskRecorder, client_mask
from pfl_lightning.report.masks import (
    activation_counts,
    draw_activation_heat,
    draw_activation_spread,
    draw_iou,
    iou_by_label,
    pairwise_iou,
    shown_tensors,
)
from pfl_lightning.vector import Layout, Span
from tests.ranks import run_on_ranks
from tests.toy import toy_loop


def recorded(folder: Path, world: int, algorithm: Any = None, **config: Any) -> MaskHistory:
    def work(fabric: Fabric) -> None:
        loop = toy_loop(fabric, algorithm or FedPURIN(tau=0.3), **{"rounds": 5, "eval_every": 0, **config})
        loop.on_round_end = [MaskRecorder(folder)]
        loop.fit()

    run_on_ranks(work, world)
    return MaskHistory.load(folder / "masks.safetensors")


def test_iou_by_hand() -> None:
    """1100 and 1010: 1 of 3; two empty masks are equal."""
    rows = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]).bool()
    expected = [[1, 1 / 3, 0, 0], [1 / 3, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    np.testing.assert_allclose(pairwise_iou(rows), expected)


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_counts_are_those_of_every_round_and_the_same_on_two_ranks(tmp_path: Path, participation: float) -> None:
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedPURIN(tau=0.3), rounds=5, participation=participation)
    counts, visits, server = torch.zeros(7, 99), torch.zeros(7), torch.zeros(99)
    for _ in range(5):
        loop.round()
        for client in loop.comm.cohort:
            counts[client] += client_mask(loop, client)
            visits[client] += 1
        server += loop.server.theta != 0
    for world in (1, 2):
        folder = tmp_path / str(world)
        folder.mkdir()
        history = recorded(folder, world, participation=participation)
        assert torch.equal(history.counts, counts.int())
        assert torch.equal(history.visits, visits.long())
        assert torch.equal(history.server, server.int())
        assert history.rounds == 5
        assert torch.equal(history.label_counts, loop.data.label_counts())
        for client in range(7):
            drawn = client in loop.store.states
            assert torch.equal(history.last[client], client_mask(loop, client) if drawn else torch.zeros(99).bool())


def test_rows_are_ordered_by_label_and_clients_without_a_mask_left_out() -> None:
    """Labels {1}, {0, 2}, {0}, and one that was visited but keeps nothing: the order is 0 | 0,2 | 1."""
    layout = Layout((Span("net.head.weight", 0, 2, torch.Size([2])), Span("net.head.bias", 2, 4, torch.Size([2]))), 4)
    last = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    labels = torch.tensor([[0, 9, 0], [5, 0, 5], [19, 1, 0], [0, 3, 0]])
    zeros = torch.zeros(4, 4, dtype=torch.int32)
    history = MaskHistory(layout, last, zeros, torch.tensor([1, 2, 1, 1]), zeros[0], 2, labels)
    matrix, names = iou_by_label(history, "net.head")
    assert names == ["0", "0,2", "1"]
    np.testing.assert_allclose(matrix, [[1, 1 / 2, 1 / 2], [1 / 2, 1, 1 / 3], [1 / 2, 1 / 3, 1]])
    np.testing.assert_allclose(iou_by_label(history, "net.head.bias")[0], [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    with pytest.raises(ConfigError, match=r"layer: 'net\.tail' is not in the model"):
        iou_by_label(history, "net.tail")


def test_the_first_kernel_of_a_convolution_comes_in_its_own_order() -> None:
    """In the vector a convolution lies as (out, height, width, in); the picture wants (in, height · width)."""
    shape = torch.Size([2, 3, 2, 2])
    weight = torch.arange(24).reshape(shape)
    flat = weight.permute(0, 2, 3, 1).reshape(1, -1).int()
    layout = Layout((Span("conv.weight", 0, 24, shape),), 24)
    history = MaskHistory(layout, flat > 0, flat, torch.ones(1).long(), flat[0], 24, torch.ones(1, 2).long())
    counts = activation_counts(history, "conv.weight", [0])
    assert counts.tolist() == [weight[0].flatten().tolist()] * 2


def test_pictures_are_drawn(tmp_path: Path) -> None:
    history = recorded(tmp_path, 1, FedSelect(p=0.5, alpha=0.5), participation=0.7)
    assert shown_tensors(history) == ["net.body.0.weight", "net.head.weight"]
    matrix, labels = iou_by_label(history, "net.head")
    figures: list[Figure] = [
        draw_iou(matrix, labels, "net.head"),
        draw_activation_spread(history, [0, 3, 5]),
        draw_activation_heat(history, [0, 3, 5], ["net.head.weight", "net.head.bias"]),
    ]
    for figure in figures:
        figure.savefig(picture := BytesIO())
        assert len(picture.getvalue()) > 5000
