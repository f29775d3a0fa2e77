"""CFL: FedAvg in clusters, split where clients keep pulling apart. Sattler, Müller and Samek, IEEE TNNLS 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts.clusters import TINY, cut, find_cluster, grow_tree, length
from pfl_lightning.algorithms.parts.pairwise import dot
from pfl_lightning.foundation.errors import require
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class CFL(FedAvg):
    """A cluster whose mean update is small while a member's is large has converged as a group, but not for its members:
    it is cut in two by the cosines between their updates, and each half goes on from its own mean.

    Clusters are the leaves of a tree of splits. The server's knowledge of a client, its cluster and last update, lies
    in the client's state, so that no rank holds all of it. A client that was not drawn when its cluster was split
    follows the half whose mean update is nearer to its own last one. Without one, the larger half.
    Memory per rank: a model for every cluster, two mean updates for every split, and of the round's models those of
    its own clients.
    """

    eps_1: float = 0.4
    """A cluster is split when its mean update is shorter than this (0: never, which is FedAvg) ..."""
    eps_2: float = 1.6
    """... while its longest update is longer than this. Both depend on the model and must be tuned."""
    start_round: int = 20
    """No split up to this round."""
    linkage: Literal["single", "complete"] = "single"
    """single: the halves whose largest cross similarity is smallest (the paper). complete: as in the authors' code."""
    max_cross_similarity: float = 1.0
    """No split when two clients in different halves would have a larger cosine. 1.0: always split."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.eps_1 >= 0, "eps_1", self.eps_1, "a number >= 0")
        require(self.eps_2 >= 0, "eps_2", self.eps_2, "a number >= 0")
        require(self.start_round >= 0, "start_round", self.start_round, "a whole number >= 0")
        require(self.linkage in ("single", "complete"), "linkage", self.linkage, "single or complete")
        allowed = "a cosine, from -1 to 1"
        require(-1 <= self.max_cross_similarity <= 1, "max_cross_similarity", self.max_cross_similarity, allowed)

    @override
    def init_server(self, client: ClientModule, server: Server) -> None:
        server.memory["children"] = torch.zeros(1, dtype=torch.int64)  # of each node the first child. 0: a cluster
        server.memory["model0"] = server.vector.clone()

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        node = find_cluster(client, server)
        client.memory["cluster"] = torch.tensor(node)
        masks.merge(client.vector, client.mask, server.memory[f"model{node}"])

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        upload.bytes = upload.count_bytes()  # the server knows the cluster, and with it the update
        start = server.memory[f"model{int(client.memory['cluster'])}"]
        client.memory["update"] = client.theta - start[: client.layout.num_parameters]
        upload.extra = {"model": client.vector.clone(), "update": client.memory["update"]}
        upload.extra["cluster"] = client.memory["cluster"]
        return upload

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies:
        super().aggregate(server, uploads)  # the mean over all clusters serves as the global model
        number = torch.zeros((), dtype=torch.int64, device=server.vector.device)
        cluster = uploads.table("cluster", number).tolist()
        replies: list[tuple[int, Reply]] = []
        for node in sorted(set(cluster)):
            ids = [client for client, its in zip(uploads.cohort, cluster, strict=True) if its == node]
            old = server.memory[f"model{node}"]
            new = uploads.mean_of(ids, "model", old)
            halves = self.halve(ids, new - old, server, uploads)
            if len(halves) == 1:
                server.memory[f"model{node}"] = new
                continue
            first = grow_tree(node, server)
            for child, half in enumerate(halves, first):
                model = uploads.mean_of(half, "model", old)
                server.memory[f"model{child}"] = model
                server.memory[f"update{child}"] = (model - old)[: server.layout.num_parameters]
                replies += [(client, Reply({"cluster": torch.tensor(child)})) for client in half]
        return replies

    def halve(self, ids: list[int], change: Tensor, server: Server, uploads: Uploads) -> list[list[int]]:
        """The cluster's halves if it stands still as a whole, by `change` [S], while a member moves; else itself."""
        mean_update = change[: server.layout.num_parameters]
        if len(ids) <= 2 or server.round <= self.start_round or float(length(mean_update)) >= self.eps_1:
            return [ids]
        number = torch.zeros((), dtype=torch.float64, device=server.vector.device)
        rows = [uploads.cohort.index(client) for client in ids]
        lengths = {client: length(upload.extra["update"]) for client, upload in uploads.local.items()}
        norms = uploads.gather_rows(lengths, number).cpu()[rows]
        if float(norms.max()) <= self.eps_2:
            return [ids]
        products = uploads.pairwise("update", "update", server.theta, dot)[rows][:, rows]
        cosines = products / norms.clamp(min=TINY).outer(norms.clamp(min=TINY))
        return [[ids[row] for row in part] for part in cut(cosines, self.linkage, self.max_cross_similarity)]
