"""A task that is a net and an optimizer, both chosen in the config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pfl_lightning.tasks.task import NetFactory, OptimizerFactory, Task

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class NetTask(Task):
    """What classification and regression have in common; the loss and the metrics are theirs.

    Args:
        net: the model; any class with a body and a head.
        optimizer: the local optimizer; its state starts fresh at each visit of a client.
    """

    def __init__(self, net: NetFactory, optimizer: OptimizerFactory) -> None:
        super().__init__()
        self.make_net = net
        self.make_optimizer = optimizer

    @override
    def build(self, spec: DataSpec) -> None:
        self.net = self.make_net(spec)

    @override
    def configure_optimizers(self) -> Optimizer:
        return self.make_optimizer(p for p in self.parameters() if p.requires_grad)

    @override
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        return outputs
