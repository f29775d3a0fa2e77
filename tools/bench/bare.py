"""The bare loops that we are compared with: plain torch, as short as they can be, nothing of ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def train(net: nn.Module, x: Tensor, y: Tensor, batches: list[Tensor], lr: float, momentum: float) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum)
    net.train()
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(net: nn.Module, x: Tensor, y: Tensor, samples: Tensor, batch_size: int = 1024) -> tuple[int, float]:
    net.eval()
    correct, loss = 0, 0.0
    for batch in samples.split(batch_size):
        logits, labels = net(x[batch]), y[batch]
        correct += int((logits.argmax(1) == labels).sum())
        loss += float(cross_entropy(logits, labels, reduction="sum"))
    return correct, loss


def average(total: list[Tensor], net: nn.Module, weight: float) -> None:
    with torch.no_grad():
        for mean, own in zip(total, (*net.parameters(), *net.buffers()), strict=True):
            if mean.is_floating_point():
                mean.add_(own, alpha=weight)


@torch.no_grad()
def load(net: nn.Module, values: list[Tensor]) -> None:
    for own, value in zip((*net.parameters(), *net.buffers()), values, strict=True):
        own.copy_(value)
