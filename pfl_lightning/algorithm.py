"""How clients and server cooperate: the seven steps of a visit and a round. Their defaults are FedAvg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from pfl_lightning import ledger, masks
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.exact_mean import Upload
from pfl_lightning.tasks.task import Task
from pfl_lightning.vector import Layout

Replies = Mapping[int, dict[str, Tensor]]


@dataclass
class Server:
    """What every rank knows alike: the global model and what an algorithm lets the server remember."""

    vector: Tensor
    """The global model [S]: parameters, then floating-point buffers."""
    initial: Tensor
    """The model that everything started from [S]."""
    layout: Layout
    num_clients: int
    round: int = 0
    memory: dict[str, Tensor] = field(default_factory=dict)

    @property
    def theta(self) -> Tensor:
        """The global parameters [P]."""
        return self.vector[: self.layout.num_parameters]

    def copy(self) -> Server:
        """A copy that shares nothing with this one but what never changes."""
        return replace(self, vector=self.vector.clone(), memory={name: t.clone() for name, t in self.memory.items()})


class Algorithm:
    """Override the steps that differ from FedAvg; declare hyperparameters as dataclass fields of the subclass.

    An algorithm knows nothing of ranks, files or logging, and sets nothing on itself: what persists lives in
    `client.memory`, `client.mask` and `server.memory`.
    """

    weighting: Literal["samples", "uniform"] = "samples"
    bn_buffers: Literal["average", "local"] = "average"
    # whether parameters that a client keeps on download are uploaded and averaged all the same; without an annotation,
    # since with one the command line would no longer check the types of settings
    uploads_personal = False

    @property
    def partial_upload(self) -> bool:
        """Whether clients keep some entries out of the mean; weights are then summed per entry."""
        return self.bn_buffers == "local"

    def check(self, task: Task, data: FederatedData) -> None:
        """Refuse, with a `ConfigError`, a task or data that the method cannot work with."""

    def adapt(self, task: Task) -> None:
        """Change the net before it is used, e.g. give it another head. torch's random state is the initial model's."""

    def begin(self, client: ClientModule, server: Server) -> None:
        """Before the first round: declare what the server remembers, alike on every rank."""

    def invites_all(self, round_: int) -> bool:
        """Whether every client takes part in this round, whatever the participation."""
        return False

    def setup(self, client: ClientModule, server: Server) -> None:
        """A client's first visit: set the first mask, declare what it remembers."""
        if self.bn_buffers == "local":
            client.mask[server.layout.num_parameters :] = True

    def download(self, client: ClientModule, server: Server) -> None:
        """Make the starting model of the visit: personal entries stay, the rest comes from the server."""
        masks.merge(client.vector, client.mask, server.vector)

    def fit(self, client: ClientModule, server: Server) -> None:
        """Train on the client's own data."""
        client.train_epochs()

    def travels(self, client: ClientModule) -> Tensor | None:
        """The entries that client and server exchange, bool [S]; None for all of them."""
        if not self.partial_upload:
            return None
        entries = ~client.mask
        if self.uploads_personal:
            entries[: client.layout.num_parameters] = True
        return entries

    def upload(self, client: ClientModule, server: Server) -> Upload:
        """What leaves the client."""
        entries = self.travels(client)
        share = {} if entries is None else {"vector": entries}
        return Upload(client.id, {"vector": client.vector.clone()}, client.weight, share)

    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies | None:
        """The server's step: by default the weighted mean of each entry over those who share it.

        Returns:
            What the server has for single clients of this rank, by client: it goes into their memory.
        """
        per_entry = ("vector",) if self.partial_upload else ()
        server.vector.copy_(comm.mean(uploads, {"vector": server.vector}, per_entry)["vector"])
        return None

    def personalize(self, client: ClientModule, server: Server) -> None:
        """Make the model that is evaluated for a client that is not being trained."""
        self.download(client, server)

    def finetune(self, client: ClientModule, server: Server, epochs: int) -> None:
        """Train the throw-away copy of a client's model that evaluations may ask for."""
        client.train_epochs(epochs)

    def test(self, client: ClientModule, server: Server) -> Tensor:
        """The sums of the task's metrics for the client's present model."""
        return client.test()

    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """Bytes the server sends to a client at a visit; a mask that is used is known to both sides."""
        entries = self.travels(client)
        return ledger.dense_bytes(server.layout.size if entries is None else int(entries.count_nonzero()))

    def up_bytes(self, client: ClientModule, upload: Upload) -> int:
        """Bytes a client sends: every entry that it shares."""
        return sum(
            ledger.dense_bytes(int(upload.share[name].count_nonzero()) if name in upload.share else value.numel())
            for name, value in upload.values.items()
        )
