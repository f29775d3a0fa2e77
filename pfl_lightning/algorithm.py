"""How clients and server cooperate. The defaults are FedAvg. A method overrides the steps in which it differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pfl_lightning.comm.upload import Upload
from pfl_lightning.comm.uploads import Uploads
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import AlgorithmError
from pfl_lightning.model.checksum import checksum
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.layout import Layout
from pfl_lightning.tasks.task import Task

__all__ = ["Algorithm", "ClientModule", "Exchange", "Replies", "Reply", "Server", "Upload", "Uploads"]


@dataclass(slots=True)
class Server:
    """The global model and the server's memory. The server is replicated: every rank holds the same one."""

    vector: Tensor
    """The global model [S]: parameters, then floating-point buffers."""
    initial: Tensor
    """The model that everything started from [S]."""
    layout: Layout
    num_clients: int
    round: int = 0
    memory: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that the algorithm keeps on the server."""

    @property
    def theta(self) -> Tensor:
        """The global parameters [P]."""
        return self.vector[: self.layout.num_parameters]

    def next_round(self) -> Server:
        """A copy for the next round. The round works on the copy, so giving it up changes nothing."""
        memory = {name: tensor.clone() for name, tensor in self.memory.items()}
        return replace(self, vector=self.vector.clone(), memory=memory, round=self.round + 1)

    def fingerprint(self) -> int:
        """A 63-bit number that differs if an entry of the model or of the memory differs."""
        return checksum({"": self.vector, **self.memory})


@dataclass(frozen=True)
class Exchange:
    """The entries of the model that a client keeps, and those that it sends.

    Kept entries survive until the client's next visit, and `download` does not overwrite them. Sent entries are
    uploaded and averaged. By default a client sends everything it does not keep. A method may also send entries that
    it keeps (FedOBP), or neither keep nor send some (the frozen head of FedBABU).
    """

    keeps: Tensor
    """Bool [S], the client's mask: True = personal."""
    sends: Tensor | None = None
    """Bool [S]. None: all entries not kept."""
    sent: int | None = None
    """The number of entries that travel, if it is known already. Counting them lets the host wait for a GPU."""

    @classmethod
    def of_everything(cls, client: ClientModule, bn_buffers: str) -> Exchange:
        """Send every entry, kept or not, except BatchNorm statistics that stay local."""
        sends = torch.ones_like(client.mask)
        if bn_buffers != "local":
            return cls(client.mask, sends, client.layout.size)
        sends[client.layout.num_parameters :] = False
        return cls(client.mask, sends, client.layout.num_parameters)

    def sent_entries(self) -> Tensor | None:
        """The entries that travel, bool [S], or None if the whole model does."""
        if self.count() == len(self.keeps):
            return None
        return ~self.keeps if self.sends is None else self.sends

    def count(self) -> int:
        """The number of entries that travel in each direction."""
        return self._count

    @cached_property
    def _count(self) -> int:
        if self.sent is not None:
            return self.sent
        return int(torch.count_nonzero(~self.keeps if self.sends is None else self.sends))


@dataclass
class Reply:
    """The server's answer to one client after a round."""

    memory: dict[str, Tensor] = field(default_factory=dict)
    """New values in the client's memory."""
    personal: Tensor | None = None
    """New values of the client's personal entries, in their order."""


Replies = Iterable[tuple[int, Reply]]
"""Client and reply, one at a time."""


class Algorithm:
    """Override the steps that differ from FedAvg. Declare hyperparameters as dataclass fields of the subclass.

    | when | steps |
    |---|---|
    | before the first round | `check`, `modify_model`, `init_server` |
    | at the start of a round | `select_cohort` |
    | a client's visit | `setup` (first visit only), `download`, `fit`, `upload` |
    | after the visits | `aggregate` |
    | in an evaluation | `personalize`, `finetune` |
    | in every test | `test` |
    | traffic | `exchange`, `down_bytes` |

    An algorithm knows nothing of ranks, files or logging. It keeps nothing on itself: values that persist live in
    `client.memory`, `client.mask` and `server.memory`.
    """

    __slots__ = ("__dict__", "__weakref__", "_sealed")
    if TYPE_CHECKING:
        _sealed: bool

    weighting: Literal["samples", "uniform"] = "samples"
    bn_buffers: Literal["average", "local"] = "average"

    def check(self, task: Task, data: FederatedData) -> None:
        """Refuse, with a `ConfigError`, a task or data that the method cannot work with."""

    def modify_model(self, task: Task) -> None:
        """Change the net before it is used, e.g. replace its head. torch's random state is the initial model's."""

    def init_server(self, client: ClientModule, server: Server) -> None:
        """Put the server's first memory into `server.memory`."""

    def select_cohort(self, round_: int, drawn: Sequence[int], num_clients: int) -> Sequence[int]:
        """The clients that take part in a round. Default: those drawn at random."""
        return drawn

    def setup(self, client: ClientModule, server: Server) -> None:
        """Prepare a client at its first visit: set its first mask, fill its memory."""
        if self.bn_buffers == "local":
            client.mask[client.layout.num_parameters :] = True

    def download(self, client: ClientModule, server: Server) -> None:
        """Make the starting model of the visit. Personal entries stay, the others come from the server."""
        client.receive(server.vector)

    def fit(self, client: ClientModule, server: Server) -> None:
        """Train on the client's own data."""
        client.train_epochs()

    def exchange(self, client: ClientModule) -> Exchange:
        """Which entries the client keeps and which it sends. Default: it sends everything it does not keep."""
        return Exchange(client.mask, sent=client.layout.size - client.count_personal())

    def upload(self, client: ClientModule, server: Server) -> Upload:
        """A copy of the client's model, as far as `exchange` sends it. An override may change the copy."""
        return self.upload_model(client, client.vector.clone())

    def upload_model(self, client: ClientModule, model: Tensor) -> Upload:
        """An upload of `model` [S], as far as `exchange` sends it."""
        exchange = self.exchange(client)
        if exchange.keeps is not client.mask and not torch.equal(exchange.keeps, client.mask):
            raise AlgorithmError(
                f"algorithm: {type(self).__name__}.exchange keeps entries that client.mask does not, so they would be "
                f"lost; set client.mask, and return Exchange(client.mask, …)"
            )
        sent = exchange.sent_entries()
        return Upload(client.id, {"vector": model}, client.weight, {} if sent is None else {"vector": sent})

    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        """The server's step. Default: each entry becomes the weighted mean over the clients that sent it.

        Returns:
            Replies to single clients, if any.
        """
        server.vector.copy_(uploads.mean({"vector": server.vector})["vector"])
        return None

    def personalize(self, client: ClientModule, server: Server) -> None:
        """Make the model to evaluate for a client outside its training."""
        self.download(client, server)

    def finetune(self, client: ClientModule, server: Server, epochs: int) -> None:
        """Train the throw-away copy of a client's model that an evaluation may ask for."""
        client.train_epochs(epochs)

    def test(self, client: ClientModule, server: Server) -> Tensor:
        """The sums of the task's metrics for the client's present model."""
        return client.test()

    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """Bytes that the server sends at a visit. Both sides know the mask, so it costs nothing."""
        return 4 * self.exchange(client).count()

    def seal(self) -> None:
        """Refuse new attribute values from now on. The loop calls it before the first round."""
        object.__setattr__(self, "_sealed", True)

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_sealed", False):
            raise AlgorithmError(
                f"algorithm: {type(self).__name__} sets self.{name} during a run, which ranks do not share and "
                f"checkpoints do not save; use client.memory or server.memory"
            )
        super().__setattr__(name, value)
