"""FedPURIN: FedCAC with sparse models, only what is critical is ever sent. Xie, He, Shi, 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from pfl_lightning import ledger, masks, scores
from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedcac import FedCAC
from pfl_lightning.client import ClientModule
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload


@dataclass
class FedPURIN(FedCAC):
    """A client marks the top tau of each tensor as critical, by what zeroing a parameter would do to its loss, and
    sends zeros for the rest. Group means and the global model are means of these sparse models, zeros counted.
    """

    gradient: Literal["last_batch", "update"] = "last_batch"
    """What g in |g·θ| is: the gradient of the visit's last batch, or how far the training moved each parameter."""
    hessian: bool = False
    """Score by |−g·θ + ½ g²θ²|: with the second-order term, the Hessian's diagonal taken as g²."""
    bn_layers: Literal["local", "share"] = "local"
    """BatchNorm's weights and biases: kept by each client, or scored and shared like other parameters (Fig. 3)."""
    test_sparse: bool = False
    """Test `after` the model with zeros for what is not critical, as in the paper's tables, not the trained one."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.gradient in ("last_batch", "update"), "gradient", self.gradient, "last_batch or update")
        require(self.bn_layers in ("local", "share"), "bn_layers", self.bn_layers, "local or share")

    @override
    def travels(self, client: ClientModule) -> Tensor:
        entries = super().travels(client)
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
        gradient = client.grad if self.gradient == "last_batch" else start - client.theta
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
    def up_bytes(self, client: ClientModule, upload: Upload) -> int:
        """Values and places of the critical parameters; averaged statistics, if any, as they are."""
        parameters, buffers = torch.tensor_split(upload.share["vector"], [client.layout.num_parameters])
        critical = ledger.sparse_bytes(int(self.critical(client).sum()), int(parameters.sum()))
        return critical + ledger.dense_bytes(int(buffers.sum()))
