"""FLOCO: the classifier becomes a simplex, each client a region of it. Grinwald, Wiesner and Nakajima, NeurIPS 2024."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from pfl_lightning import ledger
from pfl_lightning.algorithm import Replies, Server
from pfl_lightning.algorithms.features import require_classifier
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.pairwise import dot, pairwise
from pfl_lightning.algorithms.simplex import SimplexHead, centers
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload
from pfl_lightning.tasks.task import Task
from pfl_lightning.vector import Layout

ENDPOINTS, CENTER, RADIUS = (f"net.head.{name}" for name in ("endpoints", "center", "radius"))


@dataclass
class Floco(FedAvg):
    """The head's weight is Σ α_m W_m, α drawn afresh for each batch: up to round τ from the whole simplex, then near
    the client's center, at which it is tested. In round τ all clients take part, and clients whose endpoints have moved
    alike get centers that lie close. Body, bias and endpoints are averaged as in FedAvg.

    The endpoints take the head's place in the model, so they are trained, averaged and counted as all parameters are;
    a client's center and radius are personal entries of it. A client that has none is tested in the middle.
    Memory per rank: in round τ the models of its own clients and the endpoints of one more.
    """

    partial_upload = True

    endpoints: int = 10
    """Number M of endpoints. 1, with rho 0, is FedAvg."""
    tau: int = 10
    """The round in which the clients get their regions."""
    rho: float = 0.1
    """Radius of a client's region. The best value depends on the data: the authors use 0.01 to 0.5."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.endpoints >= 1, "endpoints", self.endpoints, "a whole number >= 1")
        require(self.tau >= 1, "tau", self.tau, "a whole number >= 1")
        require(self.rho >= 0, "rho", self.rho, "a number >= 0")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        require_classifier(task, "Floco")

    @override
    def adapt(self, task: Task) -> None:
        task.net.head = SimplexHead(task.net.head, self.endpoints)  # type: ignore[arg-type]

    @override
    def invites_all(self, round_: int) -> bool:
        return round_ == self.tau

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        client.mask |= region(client.layout).to(client.mask.device)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if "center" in client.memory:
            views = client.layout.views(client.vector)
            views[CENTER].copy_(client.memory.pop("center"))
            views[RADIUS].fill_(self.rho)

    @override
    def travels(self, client: ClientModule) -> Tensor:
        own = region(client.layout).to(client.mask.device)
        if self.bn_buffers == "local":
            own[client.layout.num_parameters :] = True
        return ~own

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        center = self.endpoints if server.round > self.tau else 0
        return super().down_bytes(client, server) + ledger.dense_bytes(center)

    @override
    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies | None:
        if server.round != self.tau:
            return super().aggregate(server, uploads, comm)
        mine = list(uploads)
        place = next(span for span in server.layout.spans if span.name == ENDPOINTS)
        vectors = {upload.client: upload.values["vector"][place.start : place.stop] for upload in mine}
        products = pairwise(vectors, vectors, server.vector[place.start : place.stop], dot, comm)
        super().aggregate(server, iter(mine), comm)
        rows = zip(comm.cohort, centers(products, self.endpoints).to(server.vector), strict=True)
        return {client: {"center": center} for client, center in rows if client in vectors}


def region(layout: Layout) -> Tensor:
    """The entries [S] that hold a client's center and radius."""
    return layout.where([CENTER, RADIUS])
