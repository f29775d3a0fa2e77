"""FedPURIN: FedCAC with sparse models: only critical parameters are sent. Xie, He, Shi, 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedcac import FedCAC
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.foundation.errors import require
from pfl_lightning.metrics import ledger
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class FedPURIN(FedCAC):
    """A client marks the top tau of each tensor as critical, by the effect of zeroing a parameter on its loss, and
    sends zeros for the rest. Group means and the global model are means of these sparse models, zeros counted.
    """

    gradient: Literal["last_batch", "update"] = "last_batch"
    """The gradient g in |g·θ|: of the visit's last batch, or the change of each parameter in training."""
    hessian: bool = False
    """Score by |−g·θ + ½ g²θ²|: with the second-order term, the Hessian's diagonal taken as g²."""
    bn_layers: Literal["local", "share"] = "local"
    """BatchNorm's weights and biases: kept by each client, or scored and shared like other parameters (Fig. 3)."""
    half_gradient: bool = False
    """Round the last batch's gradient to 16 bits before scoring, as the authors' code does. Entries below 3e-8 become
    zero, so they are never critical."""
    test_sparse: bool = False
    """Test the sparse model `after` training, with zeros for entries not critical, as the paper's tables
    do."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.gradient in ("last_batch", "update"), "gradient", self.gradient, "last_batch or update")
        require(self.bn_layers in ("local", "share"), "bn_layers", self.bn_layers, "local or share")

    @override
    def shared(self, client: ClientModule) -> Tensor:
        entries = super().shared(client)
        if self.bn_layers == "local":
            norms = masks.by_type(client.task, client.layout, _BatchNorm)[: client.layout.num_parameters]
            entries[: len(norms)] &= ~norms
        return entries

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        if self.test_sparse:
            client.vector.copy_(self.sent_model(client))

    @override
    def score(self, client: ClientModule, start: Tensor) -> Tensor:
        if self.gradient == "update":
            return scores.perturbation(client.theta, start - client.theta, self.hessian)
        gradient = client.grad.half().to(client.grad) if self.half_gradient else client.grad
        return scores.perturbation(client.theta, gradient, self.hessian)

    @override
    def sent_model(self, client: ClientModule) -> Tensor:
        """The critical parameters, zeros for the other shared ones."""
        sparse = client.vector.clone()
        sparse[: client.layout.num_parameters].masked_fill_(~client.mask[: client.layout.num_parameters], 0.0)
        return sparse

    @override
    def rest_bytes(self, client: ClientModule, server: Server) -> int:
        """Most of the global model is there, or only a part of it: values and a bit mask then, whatever is smaller."""
        rest = server.vector[~client.mask]
        return min(ledger.dense_bytes(len(rest)), ledger.sparse_bytes(int(rest.count_nonzero()), len(rest)))

    @override
    def up_bytes(self, client: ClientModule) -> int:
        """Values and places of the critical parameters. Averaged statistics, if any, as they are."""
        parameters, buffers = torch.tensor_split(self.shared(client), [client.layout.num_parameters])
        critical = ledger.sparse_bytes(int(self.critical(client).sum()), int(parameters.sum()))
        return critical + ledger.dense_bytes(int(buffers.sum()))
