"""Heads that methods of features and classifiers accept, and those they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pfl_lightning.algorithms.parts.features import require_head
from pfl_lightning.algorithms.parts.head_weights import moments
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets import MLP
from pfl_lightning.tasks import Classification
from tests.helpers.toy import ToyData


class Plain(nn.Module):
    """A net of one's own. What its head returns is multiplied before it is returned."""

    def __init__(self, spec: Any, factor: float) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.body = nn.Linear(spec.inputs if hasattr(spec, "inputs") else int(torch.tensor(spec.shape).prod()), 6)
        self.head = nn.Linear(6, spec.num_classes)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.flat(x)).relu())
        return out * self.factor


def built(make: Any, head: str | None = None) -> tuple[Classification, ToyData]:
    data = ToyData()
    data.setup(1)
    task = Classification(make, lambda p: SGD(p, lr=0.1), head=head)
    task.build(data.spec)
    return task, data


def test_a_net_of_ours_and_one_whose_output_is_its_heads_are_accepted():
    require_head(*built(lambda spec: MLP(spec, (5,))), "FedPAC")
    require_head(*built(lambda spec: Plain(spec, 1.0)), "FedPAC")


def test_an_output_that_is_not_the_heads_is_refused():
    with pytest.raises(ConfigError, match="needs a net whose output is the output of its head"):
        require_head(*built(lambda spec: Plain(spec, 2.0)), "FedPAC")


def test_another_layer_of_our_net_is_not_its_head():
    task, data = built(lambda spec: MLP(spec, (5,)))
    layers = [name for name, module in task.named_modules() if isinstance(module, nn.Linear)]
    other = next(name for name in layers if name != task.head_name)
    task, data = built(lambda spec: MLP(spec, (5,)), other.removeprefix("net."))
    with pytest.raises(ConfigError, match="needs a net whose output is the output of its head"):
        require_head(task, data, "FedPAC")


def test_a_client_without_samples_has_moments_of_zero():
    h, variance = moments(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 2)
    assert h.tolist() == [[0.0] * 3] * 2
    assert float(variance) == 0
