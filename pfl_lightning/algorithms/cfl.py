"""CFL: FedAvg in clusters, split where clients keep pulling apart. Sattler, Müller and Samek, IEEE TNNLS 2021."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning import masks
from pfl_lightning.algorithm import Replies, Server
from pfl_lightning.algorithms.clusters import TINY, cut, find_cluster, grow_tree, length
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.pairwise import dot, pairwise
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload


@dataclass
class CFL(FedAvg):
    """A cluster whose mean update is small while a member's is large has converged as a group, but not for its members:
    it is cut in two by the cosines between their updates, and each half goes on from its own mean.

    Clusters are the leaves of a tree of splits. What the server knows of a client, its cluster and last update, lies
    with the client's state, so that no rank holds all of it. A client that was not drawn when its cluster was split
    follows the half whose mean update is nearer to its own last one; without one, the larger half.
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
    """single: the halves whose largest cross similarity is smallest (the paper); complete: as in the authors' code."""
    max_cross_similarity: float = 1.0
    """No split when two clients in different halves would have a larger cosine; 1.0: always split."""

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
    def begin(self, client: ClientModule, server: Server) -> None:
        server.memory["children"] = torch.zeros(1, dtype=torch.int64)  # of each node the first child; 0: a cluster
        server.memory["model0"] = server.vector.clone()

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        node = find_cluster(client, server)
        client.memory["cluster"] = torch.tensor(node)
        masks.merge(client.vector, client.mask, server.memory[f"model{node}"])

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        start = server.memory[f"model{int(client.memory['cluster'])}"]
        client.memory["update"] = client.theta - start[: client.layout.num_parameters]
        upload.values |= {name: client.memory[name] for name in ("cluster", "update")}
        return upload

    @override
    def up_bytes(self, client: ClientModule, upload: Upload) -> int:
        # the server knows the cluster, and with it the update
        return super().up_bytes(client, replace(upload, values={"vector": upload.values["vector"]}))

    @override
    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies:
        mine = list(uploads)
        super().aggregate(server, iter(mine), comm)  # a mean over all clusters, for those who look at a global model
        number = torch.zeros((), dtype=torch.int64, device=server.vector.device)
        cluster = comm.table({upload.client: upload.values["cluster"] for upload in mine}, number).tolist()
        replies: dict[int, dict[str, Tensor]] = {}
        for node in sorted(set(cluster)):
            ids = [client for client, its in zip(comm.cohort, cluster, strict=True) if its == node]
            old = server.memory[f"model{node}"]
            new = self.mean_of(ids, mine, old, comm)
            halves = self.halve(ids, new - old, mine, server, comm)
            if len(halves) == 1:
                server.memory[f"model{node}"] = new
                continue
            first = grow_tree(node, server)
            for child, half in enumerate(halves, first):
                model = self.mean_of(half, mine, old, comm)
                server.memory[f"model{child}"] = model
                server.memory[f"update{child}"] = (model - old)[: server.layout.num_parameters]
                replies |= {u.client: {"cluster": torch.tensor(child)} for u in mine if u.client in half}
        return replies

    def mean_of(self, ids: list[int], mine: list[Upload], current: Tensor, comm: Comm) -> Tensor:
        """The weighted mean of these clients' models [S]."""
        per_entry = ("vector",) if self.partial_upload else ()
        return comm.mean((u for u in mine if u.client in ids), {"vector": current}, per_entry)["vector"]

    def halve(self, ids: list[int], change: Tensor, mine: list[Upload], server: Server, comm: Comm) -> list[list[int]]:
        """The cluster's halves if it stands still as a whole, by `change` [S], while a member moves; else itself."""
        mean_update = change[: server.layout.num_parameters]
        if len(ids) <= 2 or server.round <= self.start_round or float(length(mean_update)) >= self.eps_1:
            return [ids]
        updates = {u.client: u.values["update"] for u in mine if u.client in ids}
        number = torch.zeros((), dtype=torch.float64, device=server.vector.device)
        rows = [comm.cohort.index(client) for client in ids]
        norms = comm.table({client: length(update) for client, update in updates.items()}, number).cpu()[rows]
        if float(norms.max()) <= self.eps_2:
            return [ids]
        everyone = {u.client: u.values["update"] for u in mine}
        products = pairwise(updates, everyone, server.theta, dot, comm)[rows][:, rows]
        cosines = products / norms.clamp(min=TINY).outer(norms.clamp(min=TINY))
        return [[ids[row] for row in part] for part in cut(cosines, self.linkage, self.max_cross_similarity)]
