"""Learn2pFed's Tables V and VI: parameters and floating-point operations of LeNet on CIFAR-10, by torch's counter.

python tools/check/learn2pfed_cost.py
"""

from __future__ import annotations

import torch
from torch.optim import SGD
from torch.utils.flop_counter import FlopCounterMode

from pfl_lightning.algorithms import Learn2pFed
from pfl_lightning.data import DataSpec
from pfl_lightning.nets import LeNet
from pfl_lightning.tasks import Classification

SPEC = DataSpec((3, 32, 32), 10)
PAPER = {
    "FedAvg": "2.87 + 59.13 thousand parameters, 0.6517 million operations",
    "Learn2pFed, body.fc1": "2.87 + 4.06 thousand parameters, 0.5928 million operations",
}


def build(start: str) -> Classification:
    """LeNet, its tail replaced by one linear layer from `start` on."""
    task = Classification(LeNet, lambda p: SGD(p, lr=0.1))
    task.build(SPEC)
    Learn2pFed(start_layer=start).modify_model(task)
    return task


def multiply_adds(module: torch.nn.Module, x: torch.Tensor) -> int:
    """Multiply-adds of one forward pass. torch counts a multiplication and an addition as two."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return int(counter.get_total_flops()) // 2


def main() -> None:
    """Print a line per model."""
    image = torch.zeros(1, *SPEC.shape)
    full, none = build("head"), build("body.fc1")
    extractor = sum(p.numel() for p in none.net.body.parameters())
    whole = sum(p.numel() for p in full.net.parameters())
    print(f"extractor alone: {extractor:,} parameters, {multiply_adds(none.net.body, image):,} multiply-adds")
    print(f"FedAvg: {extractor:,} + {whole - extractor:,} parameters, {multiply_adds(full.net, image):,} multiply-adds")
    for start in ("head", "body.fc2", "body.fc1"):
        net = build(start).net
        body, head = (sum(p.numel() for p in part.parameters()) for part in (net.body, net.head))
        operations = f"{multiply_adds(net, image):,} multiply-adds"
        cells = Learn2pFed().cells
        kept = head * (3 + 3 * cells) + 3 * 5 * cells
        print(
            f"Learn2pFed, {start}: {body:,} + {head:,} parameters, {operations}, {kept:,} float64 of state at a client"
        )
    for label, text in PAPER.items():
        print(f"the paper, {label}: {text}")


if __name__ == "__main__":
    main()
