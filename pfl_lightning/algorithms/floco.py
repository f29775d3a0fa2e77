"""FLOCO: the classifier becomes a simplex, each client a region of it. Grinwald, Wiesner and Nakajima, NeurIPS 2024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts.features import require_classifier, require_head
from pfl_lightning.algorithms.parts.pairwise import dot
from pfl_lightning.algorithms.parts.simplex import SimplexHead, centers
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.metrics import ledger
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.layout import Layout
from pfl_lightning.tasks.task import Task


@dataclass
class Floco(FedAvg):
    """The head's weight is Σ α_m W_m, α drawn afresh for each batch: up to round τ from the whole simplex, then near
    the client's center, at which it is tested. In round τ all clients train, and clients whose endpoints have moved in
    similar ways get nearby centers. Body, bias and endpoints are averaged as in FedAvg, in round τ over as many clients
    as took part in the round before, drawn at random, because the others train only to show their endpoints.

    The endpoints take the head's place in the model, so they are trained, averaged and counted as all parameters are.
    A client's center and radius are personal entries of it. A client without them is tested in the middle.
    Memory per rank: in round τ the models of its own clients and the endpoints of one more.
    """

    endpoints: int = 10
    """Number M of endpoints. 1, with rho 0, is FedAvg."""
    tau: int = 10
    """The round in which the clients get their regions. With 1 no round comes before it, and all are averaged."""
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
        require_classifier(task, data, "Floco")
        require_head(task, data, "Floco")

    @override
    def modify_model(self, task: Task) -> None:
        task.replace_head(SimplexHead(cast(nn.Linear, task.head), self.endpoints))

    @override
    def init_server(self, client: ClientModule, server: Server) -> None:
        server.memory["participants"] = torch.tensor(server.num_clients)

    @override
    def select_cohort(self, round_: int, drawn: Sequence[int], num_clients: int) -> Sequence[int]:
        return range(num_clients) if round_ == self.tau else drawn

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        client.mask |= region(client.layout, client.mask.device)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if "center" in client.memory:
            views, names = client.layout.views(client.vector), simplex_names(client.layout)
            views[names["center"]].copy_(client.memory.pop("center"))
            views[names["radius"]].fill_(self.rho)

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        own = region(client.layout, client.mask.device)
        if self.bn_buffers == "local":
            own[client.layout.num_parameters :] = True
        return Exchange(client.mask, ~own)

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        if server.round == self.tau:  # the server compares the endpoints, which are a part of the model
            model = upload.values["vector"]
            upload.extra["endpoints"] = endpoints_in(client.layout, model).clone()
            if self.is_averaged(client, server):
                upload.bytes = 4 * self.exchange(client).count()
            else:
                upload.sends["vector"] = torch.zeros_like(model, dtype=torch.bool)
        return upload

    def is_averaged(self, client: ClientModule, server: Server) -> bool:
        """Whether a client of round tau counts in the mean."""
        held_out = set(client.data.held_out.tolist())
        clients = [number for number in range(server.num_clients) if number not in held_out]
        draw = torch.Generator().manual_seed(derive_seed(client.seed, "averaged clients", server.round))
        order = torch.randperm(len(clients), generator=draw)[: int(server.memory["participants"])]
        return client.id in {clients[place] for place in order.tolist()}

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        center = self.endpoints if server.round > self.tau else 0
        return super().down_bytes(client, server) + ledger.dense_bytes(center)

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        replies = super().aggregate(server, uploads)
        if server.round != self.tau:
            server.memory["participants"] = torch.tensor(len(uploads.cohort))
            return replies
        like = endpoints_in(server.layout, server.vector)
        products = uploads.pairwise("endpoints", "endpoints", like, dot)
        rows = zip(uploads.cohort, centers(products, self.endpoints).to(server.vector), strict=True)
        return [(client, Reply({"center": center})) for client, center in rows]


def region(layout: Layout, device: torch.device | None = None) -> Tensor:
    """The entries [S] that hold a client's center and radius."""
    names = simplex_names(layout)
    return layout.where([names["center"], names["radius"]], device)


def endpoints_in(layout: Layout, vector: Tensor) -> Tensor:
    """The endpoints of a model [S], flat."""
    return layout.views(vector)[simplex_names(layout)["endpoints"]].reshape(-1)


def simplex_names(layout: Layout) -> dict[str, str]:
    """The full names of the endpoints, the center and the radius of the head."""
    names = {span.name for span in layout.spans}
    heads = (name.removesuffix("endpoints") for name in names if name.endswith(".endpoints"))
    head = next(head for head in heads if {f"{head}center", f"{head}radius"} <= names)
    return {name: head + name for name in ("endpoints", "center", "radius")}
