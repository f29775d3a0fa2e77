"""pFedSD: a client that trains the global model also learns from its own previous one. Jin et al., IEEE TPDS 2023."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import kl_div, log_softmax, softmax
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts.features import require_classifier, step_with_outputs
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.task import Batch, Task


@dataclass
class PFedSD(FedAvg):
    """Local loss f(θ) + λT² KL(teacher ‖ θ), both softened by the temperature T. The teacher is the client's model
    after its last training. At the first visit there is none. The model to look at is the one after local training.
    """

    bn_buffers: Literal["average", "local"] = "local"
    """BatchNorm's running statistics: kept by each client, or averaged like parameters."""
    lam: float = 0.5
    """Weight of the distillation from the teacher. 0 is FedAvg."""
    temperature: float = 3.0
    """Softens both predictions."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lam >= 0, "lam", self.lam, "a number >= 0")
        require(self.temperature > 0, "temperature", self.temperature, "a number > 0")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        require_classifier(task, data, "PFedSD")

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        teacher = client.memory.get("teacher")
        if teacher is None or not self.lam:
            client.train_epochs()
        else:
            client.train_epochs(loss=lambda batch: self.loss(client, teacher, batch))
        if self.lam:
            client.memory["teacher"] = client.vector.clone()

    def loss(self, client: ClientModule, teacher: Tensor, batch: Batch) -> Tensor:
        """The task's loss and distillation of a batch."""
        advice = outputs_of(client, teacher, batch[0])
        loss, logits = step_with_outputs(client.task, batch)
        return loss + self.lam * distillation(logits, advice, self.temperature)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), mean over the batch, of logits [N, C]."""
    target = softmax(teacher / temperature, 1)
    return temperature**2 * kl_div(log_softmax(student / temperature, 1), target, reduction="batchmean")


@torch.no_grad()
def outputs_of(client: ClientModule, model: Tensor, x: Tensor) -> Tensor:
    """The outputs of another model [S] in evaluation mode. The live model stays as it is, in training mode."""
    client.task.eval()
    outputs: Tensor = functional_call(client.task, client.layout.views(model), (x,))
    client.task.train()
    return outputs
