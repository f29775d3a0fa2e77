"""CFL: FedAvg in clusters, split where clients keep pulling apart. Sattler, Müller and Samek, IEEE TNNLS 2021."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.pairwise import dot, pairwise
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm, Upload
from pfl_lightning.errors import require


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
    """A cluster may be split when its mean update is shorter than this; 0 never splits: FedAvg. Depends on the model."""
    eps_2: float = 1.6
    """... and its longest update is longer than this. Depends on the model."""
    start_round: int = 20
    """No split up to this round."""
    linkage: Literal["single", "complete"] = "single"
    """single: the two halves whose largest cross similarity is smallest (the paper); complete: as in the authors' code."""
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
        torch.where(client.mask, client.vector, server.memory[f"model{node}"], out=client.vector)

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        start = server.memory[f"model{int(client.memory['cluster'])}"]
        client.memory["update"] = client.theta - start[: client.layout.num_parameters]
        upload.values |= {name: client.memory[name] for name in ("cluster", "update")}
        return upload

    @override
    def up_bytes(self, client: ClientModule, upload: Upload) -> int:
        model = {"vector": upload.values["vector"]}  # the server knows the cluster, and with it the update
        return super().up_bytes(client, Upload(upload.client, model, upload.weight, upload.share))

    @override
    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies:
        mine = list(uploads)
        super().aggregate(server, iter(mine), comm)
        updates = {upload.client: upload.values["update"] for upload in mine}
        norms = comm.table({c: dot(u, u).sqrt() for c, u in updates.items()}, torch.zeros((), dtype=torch.float64))
        cluster = comm.table({u.client: u.values["cluster"] for u in mine}, torch.zeros((), dtype=torch.int64))
        replies: dict[int, dict[str, Tensor]] = {}
        for node in cluster.unique().tolist():
            rows = (cluster == node).nonzero().flatten()
            old = server.memory[f"model{node}"]
            new = self.mean_of([comm.cohort[row] for row in rows], mine, old, comm)
            server.memory[f"model{node}"] = new
            if self.wants_split(server, new - old, norms[rows]):
                similarity = pairwise(updates, updates, server.theta, dot, comm)[rows][:, rows]
                halves = self.cut(similarity / norms[rows].outer(norms[rows]).clamp(min=1e-300))
                members = [[comm.cohort[row] for row in rows[torch.tensor(half)]] for half in halves]
                self.split(node, members, old, mine, server, comm)
                first = int(server.memory["children"][node])
                for child, ids in zip((first, first + 1), members, strict=False):
                    replies |= {c: {"cluster": torch.tensor(child)} for c in ids if c in updates}
        return replies

    def mean_of(self, ids: list[int], mine: list[Upload], current: Tensor, comm: Comm) -> Tensor:
        """The weighted mean of these clients' models [S]."""
        per_entry = ("vector",) if self.partial_upload else ()
        return comm.mean((u for u in mine if u.client in ids), {"vector": current}, per_entry)["vector"]

    def wants_split(self, server: Server, change: Tensor, norms: Tensor) -> bool:
        """Whether the cluster as a whole stands still while a member moves; `change` [S] is its mean update."""
        mean_update = change[: server.layout.num_parameters]
        still = float(dot(mean_update, mean_update).sqrt()) < self.eps_1
        return still and float(norms.max()) > self.eps_2 and len(norms) > 2 and server.round > self.start_round

    def cut(self, cosines: Tensor) -> list[list[int]]:
        """Two lists of rows, the larger (or the one with the first row) first; one list of all when it must not be cut."""
        distances = squareform((1 - cosines).clamp(min=0).fill_diagonal_(0).numpy(), checks=False)
        side = cut_tree(linkage(distances, self.linkage), n_clusters=2).ravel()
        halves = sorted((np.flatnonzero(side == s).tolist() for s in (0, 1)), key=lambda half: (-len(half), half))
        if float(cosines[halves[0]][:, halves[1]].max()) > self.max_cross_similarity:
            return [list(range(len(cosines)))]
        return halves
