"""The model of one client as a module of its own."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms.knnper import KNNPer
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.net_task import NetTask
from pfl_lightning.tasks.task import Task


class Predictor(nn.Module):
    """Predicts from raw inputs: bytes of images [N, H, W, C], numbers or tokens, as they are in the data set.

    Args:
        inputs: turns raw inputs into inputs of the model.
        model: the client's model.
    """

    def __init__(self, inputs: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.inputs, self.model = inputs, model

    @override
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(self.inputs(x))
        return outputs


class NeighbourVote(nn.Module):
    """The predictions of kNN-Per: log-probabilities of the net, mixed with a vote of the nearest training samples.

    Args:
        net: a net with a body and a head.
        features: of the samples that vote. # [N, D]
        labels: of the same samples. # [N]
        weight: of the vote, from 0 to 1.
        k: number of neighbours.
        sigma: scale of the distances.
        num_classes: number of classes.
    """

    features: Tensor
    votes: Tensor

    def __init__(
        self, net: nn.Module, features: Tensor, labels: Tensor, weight: float, k: int, sigma: float, num_classes: int
    ) -> None:
        super().__init__()
        self.net, self.weight, self.k, self.sigma = net, weight, min(k, len(labels)), sigma
        self.register_buffer("features", features.clone())
        self.register_buffer("votes", torch.eye(num_classes)[labels])

    @override
    def forward(self, x: Tensor) -> Tensor:
        query = cast(nn.Module, self.net.body)(x)
        squares = _squares(query, self.features)
        nearest = torch.topk(squares, self.k, dim=1, largest=False)
        weights = softmax(-nearest.values / (self.features.shape[1] * self.sigma), dim=1)
        vote = (weights[:, None] @ self.votes[nearest.indices]).squeeze(1)
        mixed = self.weight * vote + (1 - self.weight) * softmax(cast(nn.Module, self.net.head)(query), 1)
        return mixed.clamp(min=1e-12).log()


def _squares(query: Tensor, features: Tensor) -> Tensor:
    """Squared distances of all pairs. ONNX has no `cdist` without a matrix product, so a file subtracts. # [N, M]"""
    if torch.compiler.is_exporting():
        return (query[:, None] - features[None]).square().sum(2)
    return torch.cdist(query, features, compute_mode="donot_use_mm_for_euclid_dist").square()


def client_model(client: ClientModule, algorithm: Algorithm) -> nn.Module:
    """A copy of the live model that makes the predictions which `algorithm.test` counts.

    Raises:
        ConfigError: the method predicts in a way that is not a module.
    """
    net = detached_copy(model_of(client.task))
    if type(algorithm).test is Algorithm.test:
        return net
    if isinstance(algorithm, KNNPer) and type(algorithm).test is KNNPer.test:
        return _neighbour_vote(client, algorithm, net)
    name = type(algorithm).__name__
    raise ConfigError(f"algorithm: {name} has a test of its own, so its predictions are not those of a net; "
                      f"only its global model can be exported")  # fmt: skip


def model_of(task: Task) -> nn.Module:
    """The module that maps inputs to outputs: the net, or a task of the user's own."""
    return task.net if isinstance(task, NetTask) else task


def detached_copy(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose tensors share no memory with each other or with the original."""
    made = copy.deepcopy(module)
    for tensor in (*made.parameters(), *made.buffers()):
        tensor.data = tensor.data.cpu().clone()  # keeps the memory order
        tensor.grad = None
        tensor.requires_grad_(False)
    return made.eval()


def _neighbour_vote(client: ClientModule, algorithm: KNNPer, net: nn.Module) -> nn.Module:
    features, labels = algorithm.datastore(client)
    if not (algorithm.k and len(labels)) or not (algorithm.lam or algorithm.validation):
        return net
    weight = algorithm.choose(client, features, labels) if algorithm.validation else algorithm.lam
    classes = client.data.spec.num_classes
    return NeighbourVote(net, features.cpu(), labels.cpu(), weight, algorithm.k, algorithm.sigma, classes)
