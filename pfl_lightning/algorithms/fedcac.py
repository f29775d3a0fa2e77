"""FedCAC: sensitive parameters are shared with clients that have the same, the rest with all. Wu et al., ICCV 2023."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning import ledger, masks, scores
from pfl_lightning.algorithm import Replies, Server
from pfl_lightning.algorithms.collaboration import group_weights, overlap_matrix, partners
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload


@dataclass
class FedCAC(FedAvg):
    """A client marks the top tau of each tensor by |Δθ·θ| as critical. Its next model has, there, the mean over its
    group: the clients whose critical parameters overlap enough with its own; elsewhere the mean over all. Groups shrink
    until round beta, after which critical parameters stay with their client.
    """

    partial_upload = True

    bn_buffers: Literal["average", "local"] = "local"
    """BatchNorm's running statistics: kept by each client, or averaged like parameters."""
    tau: float = 0.5
    """Share of each tensor that is critical; above 0, up to 1."""
    beta: int = 100
    """The last round in which clients share critical parameters."""
    cutoff: float = 1e-10
    """Parameters that score less than this are never critical."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.tau <= 1, "tau", self.tau, "a number above 0 and up to 1")
        require(self.beta >= 1, "beta", self.beta, "a whole number >= 1")
        require(0 <= self.cutoff < math.inf, "cutoff", self.cutoff, "a number >= 0")

    @override
    def travels(self, client: ClientModule) -> Tensor:
        """The entries that clients work on together, critical or not; the others never leave a client."""
        entries = torch.ones_like(client.mask)
        entries[client.layout.num_parameters :] = self.bn_buffers == "average"
        return entries

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask.copy_(~self.travels(client))

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        start = client.theta.clone()
        client.grad.zero_()  # a visit without a single batch must not find the gradient of another client
        super().fit(client, server)
        # of a diverged client all is critical, so that it is told from its upload on every rank
        score = self.score(client, start).nan_to_num_(nan=math.inf, posinf=math.inf)
        critical = masks.top_share(score, self.tau, client.layout.parameter_spans, self.cutoff)
        client.mask.copy_(~self.travels(client))
        client.mask[: len(critical)] |= critical
        client.memory["partners"] = torch.tensor(0)

    def score(self, client: ClientModule, start: Tensor) -> Tensor:
        """The sensitivity of each parameter [P], given where the training started."""
        return scores.perturbation(client.theta, start - client.theta)

    def critical(self, client: ClientModule) -> Tensor:
        """The critical parameters of the client's latest training, bool [P]."""
        return (client.mask & self.travels(client))[: client.layout.num_parameters]

    def sent_model(self, client: ClientModule) -> Tensor:
        """The model as it is uploaded [S]."""
        return client.vector.clone()

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        values = {"vector": self.sent_model(client), "critical": masks.pack(self.critical(client))}
        return Upload(client.id, values, client.weight, {"vector": self.travels(client)})

    @override
    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies:
        """The mean over all becomes the global model; clients that have partners get their group's critical entries.

        Each rank holds its own clients' models and one group's sum, never the models of others.
        """
        held = {upload.client: upload for upload in uploads}
        super().aggregate(server, iter(held.values()), comm)
        packed = {client: upload.values["critical"] for client, upload in held.items()}
        like = torch.empty((len(server.theta) + 7) // 8, dtype=torch.uint8, device=server.vector.device)
        partner = partners(overlap_matrix(packed, like, comm), server.round, self.beta)
        models = {client: upload.values["vector"][: len(server.theta)] for client, upload in held.items()}
        replies = {}
        for client, mean in comm.mix(models, group_weights(partner), server.theta).items():
            critical = masks.unpack(packed[client], len(mean))
            count = partner[comm.cohort.index(client)].sum()
            if critical.any():
                replies[client] = {"personal": personal_entries(held[client], critical, mean), "partners": count}
        return replies

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """Critical entries come down from a group only; a client without partners has them already."""
        critical = int(self.critical(client).sum())
        rest = self.rest_bytes(client, server)
        return rest + (ledger.dense_bytes(critical) if client.memory.get("partners", 0) else 0)

    def rest_bytes(self, client: ClientModule, server: Server) -> int:
        """Bytes of the global model where the client has nothing of its own."""
        return ledger.dense_bytes(int((~client.mask).count_nonzero()))

    @override
    def up_bytes(self, client: ClientModule, upload: Upload) -> int:
        """The model, and one bit for each parameter."""
        return ledger.dense_bytes(int(upload.share["vector"].sum())) + upload.values["critical"].numel()


def personal_entries(upload: Upload, critical: Tensor, mean: Tensor) -> Tensor:
    """What the client keeps until its next visit: the group's mean where critical, its own where nothing is shared."""
    vector, kept = upload.values["vector"].clone(), ~upload.share["vector"]
    vector[: len(mean)] = torch.where(critical, mean, vector[: len(mean)])
    kept[: len(mean)] |= critical
    return vector[kept]
