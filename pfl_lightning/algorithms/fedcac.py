"""FedCAC: sensitive parameters are shared with clients that have the same, the rest with all. Wu et al., ICCV 2023."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.algorithms.parts.collaboration import group_weights, overlap_matrix, partners
from pfl_lightning.foundation.errors import require
from pfl_lightning.metrics import ledger
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class FedCAC(FedAvg):
    """A client marks the top tau of each tensor by |Δθ·θ| as critical. Its next model has, there, the mean over its
    group: the clients whose critical parameters overlap enough with its own; elsewhere the mean over all. Groups shrink
    until round beta, after which critical parameters stay with their client.
    """

    bn_buffers: Literal["average", "local"] = "local"
    """BatchNorm's running statistics: kept by each client, or averaged like parameters."""
    tau: float = 0.5
    """Critical share of each tensor. Above 0, up to 1."""
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

    def shared(self, client: ClientModule) -> Tensor:
        """The entries that clients work on together, critical or not, bool [S]. The others never leave a client."""
        entries = torch.ones_like(client.mask)
        entries[client.layout.num_parameters :] = self.bn_buffers == "average"
        return entries

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        return Exchange(client.mask, self.shared(client))

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask.copy_(~self.shared(client))

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        start = client.theta.clone()
        client.grad.zero_()  # a visit without a single batch must not find the gradient of another client
        super().fit(client, server)
        # a diverged client marks everything critical, so the exact mean detects it and all ranks raise together
        score = self.score(client, start).nan_to_num_(nan=math.inf, posinf=math.inf)
        critical = masks.top_share(score, self.tau, client.layout.parameter_spans, self.cutoff)
        client.mask.copy_(~self.shared(client))
        client.mask[: len(critical)] |= critical
        client.memory["partners"] = torch.tensor(0)

    def score(self, client: ClientModule, start: Tensor) -> Tensor:
        """The sensitivity of each parameter [P], given where the training started."""
        return scores.perturbation(client.theta, start - client.theta)

    def critical(self, client: ClientModule) -> Tensor:
        """The critical parameters of the client's latest training, bool [P]."""
        return (client.mask & self.shared(client))[: client.layout.num_parameters]

    def sent_model(self, client: ClientModule) -> Tensor:
        """The model as it is uploaded [S]."""
        return client.vector.clone()

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        model, critical = self.sent_model(client), masks.pack(self.critical(client))
        upload = self.upload_model(client, model)
        upload.bytes = self.up_bytes(client)
        if server.round <= self.beta:  # later nobody is compared, and nothing needs to wait for the end of the round
            upload.extra = {"parameters": model[: client.layout.num_parameters], "critical": critical}
            upload.extra["own"] = model[~self.shared(client)]
            upload.extra["shared"] = masks.pack(self.shared(client))
        return upload

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies:
        """The mean over all becomes the global model. Clients that have partners get their group's critical entries."""
        super().aggregate(server, uploads)
        if server.round > self.beta:
            return ()
        like = torch.empty((len(server.theta) + 7) // 8, dtype=torch.uint8, device=server.vector.device)
        partner = partners(overlap_matrix(uploads, like), server.round, self.beta)
        return self.replies(server, uploads, partner)

    def replies(self, server: Server, uploads: Uploads, partner: Tensor) -> Replies:
        """One group mean at a time: a rank never holds more than its own clients' uploads and one sum."""
        for client, mean in uploads.mix("parameters", group_weights(partner), server.theta):
            sent = uploads.local[client].extra
            critical = masks.unpack(sent["critical"], len(mean))
            if critical.any():
                count = partner[uploads.cohort.index(client)].sum()
                kept = ~masks.unpack(sent["shared"], server.layout.size)
                personal = personal_entries(sent["own"], kept, critical, mean)
                yield client, Reply({"partners": count}, personal)

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """Critical entries come down from a group only. A client without partners has them already."""
        critical = int(self.critical(client).sum())
        rest = self.rest_bytes(client, server)
        return rest + (ledger.dense_bytes(critical) if client.memory.get("partners", 0) else 0)

    def rest_bytes(self, client: ClientModule, server: Server) -> int:
        """Bytes of the global model where the client has nothing of its own."""
        return ledger.dense_bytes(int((~client.mask).count_nonzero()))

    def up_bytes(self, client: ClientModule) -> int:
        """Bytes of an upload: the model, and one bit for each parameter."""
        return ledger.dense_bytes(int(self.shared(client).sum())) + (client.layout.num_parameters + 7) // 8


def personal_entries(own: Tensor, kept: Tensor, critical: Tensor, mean: Tensor) -> Tensor:
    """The values a client keeps until its next visit: the group's mean where critical, its own where nothing is shared.

    Args:
        own: the values that never leave the client, in their order.
        kept: where they are, bool [S].
        critical: bool [P].
        mean: the mean over the group [P].
    """
    vector = torch.zeros(len(kept)).to(mean)
    vector[: len(mean)] = mean
    vector[kept] = own
    personal = kept.clone()
    personal[: len(critical)] |= critical
    return vector[personal]
