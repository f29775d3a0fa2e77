"""Algorithms with a mistake that a run must notice. The command finds them by `tests.helpers.mistaken.NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from typing_extensions import override

from pfl_lightning.algorithm import ClientModule, Exchange, Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms import FedAvg


@dataclass
class IgnoresUploads(FedAvg):
    """Clients upload their models, and nobody averages them."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        Path(f"trained-{client.id}").touch()

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        return None


@dataclass
class LooksAtItsOwnClients(FedAvg):
    """The server of a rank follows the clients of that rank."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        if server.round == 2:
            server.vector[0] = sum(uploads.local)
        return None


@dataclass
class KeepsOnSelf(FedAvg):
    """A value that belongs into a memory is kept on the algorithm."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        self.last = client.id


@dataclass
class AveragesTwice(FedAvg):
    """The mean is asked for twice."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        return super().aggregate(server, uploads)


@dataclass
class AveragesAnotherName(FedAvg):
    """Clients upload `vector`, and the server asks for `model`."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        uploads.mean({"model": torch.zeros_like(server.vector)})
        return None


@dataclass
class RemembersInAList(FedAvg):
    """A list of the algorithm grows, which ranks do not share."""

    seen: list[int] = field(default_factory=list)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        self.seen.append(client.id)


@dataclass
class RemembersOnTheClass(FedAvg):
    """The same with a dict of the class."""

    models: ClassVar[dict[int, torch.Tensor]] = {}

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        self.models[client.id] = client.vector.clone()


@dataclass
class TrainsTheServer(FedAvg):
    """A visit changes the model that the next client of this rank downloads."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        server.theta.add_(0.1)


@dataclass
class FillsTheServersMemory(FedAvg):
    """A visit writes into the server's memory."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        server.memory["last"] = client.vector.clone()


@dataclass
class KeepsWithoutAMask(FedAvg):
    """Entries are kept in `exchange`, but the client's mask is empty."""

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        keeps = torch.zeros_like(client.mask)
        keeps[:3] = True
        return Exchange(keeps)


@dataclass
class WeighsBySamples(FedAvg):
    """The weight is not a fraction."""

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        return Upload(client.id, {"vector": client.vector}, client.num_samples)


@dataclass
class UploadsForAnother(FedAvg):
    """The upload has the number of another client."""

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        return Upload(client.id + 1, {"vector": client.vector}, client.weight)


@dataclass
class UploadsNothing(FedAvg):
    """The return is forgotten."""

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        super().upload(client, server)
        return None  # type: ignore[return-value]


@dataclass
class UploadsUnevenTensors(FedAvg):
    """Clients send tensors of different sizes."""

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        return Upload(client.id, {"more": torch.ones(3 + client.id)}, client.weight)


@dataclass
class AssignsTheVector(FedAvg):
    """Another tensor takes the name of the live model, which nothing trains."""

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        client.vector = server.vector.clone()


@dataclass
class MasksWithNumbers(FedAvg):
    """The mask is not bool."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        client.mask = torch.zeros_like(client.vector)


@dataclass
class KeepsAnInteger(FedAvg):
    """A memory holds tensors only."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        client.memory["count"] = 3  # type: ignore[assignment]


@dataclass
class CountsOnTheServer(FedAvg):
    """The server's memory holds tensors only."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        server.memory["count"] = 3  # type: ignore[assignment]
        return super().aggregate(server, uploads)


@dataclass
class AsksForMore(FedAvg):
    """The server asks for values that nobody sent."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        uploads.table("loss", torch.zeros(()))
        return super().aggregate(server, uploads)


@dataclass
class RepliesWithTensors(FedAvg):
    """A reply is not a `Reply`."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        return [(client, torch.ones(1)) for client in uploads.cohort]  # type: ignore[misc]


@dataclass
class ReturnsTheModel(FedAvg):
    """`aggregate` changes the server and returns replies only."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        return server.vector  # type: ignore[return-value]


@dataclass
class RepliesTooMuch(FedAvg):
    """A reply has personal values for a client without any."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        return [(client, Reply(personal=torch.ones(3))) for client in uploads.cohort]


@dataclass
class InvitesNobody(FedAvg):
    """A round without clients."""

    @override
    def select_cohort(self, round_: int, drawn: Sequence[int], num_clients: int) -> Sequence[int]:
        return []


@dataclass
class InvitesByRank(FedAvg):
    """Every rank chooses other clients, as with a random number of its own."""

    @override
    def select_cohort(self, round_: int, drawn: Sequence[int], num_clients: int) -> Sequence[int]:
        return [dist.get_rank() if dist.is_initialized() else 0]


@dataclass
class TestsWithANumber(FedAvg):
    """A test returns a tensor of sums."""

    @override
    def test(self, client: ClientModule, server: Server) -> torch.Tensor:
        return 0.5  # type: ignore[return-value]


class HalvesTheServer(FedAvg):
    """The global model loses entries."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> None:
        server.vector = uploads.mean({"vector": server.vector})["vector"][:5]


class WidensTheServer(FedAvg):
    """The global model gets another type."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> None:
        server.vector = uploads.mean({"vector": server.vector})["vector"].double()


class SkipsRounds(FedAvg):
    """Rounds are counted by the loop."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        server.round += 5
        return super().aggregate(server, uploads)


class RepliesToAStranger(FedAvg):
    """A reply for a client that does not exist."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies:
        super().aggregate(server, uploads)
        return [(99, Reply({"a": torch.ones(1)}))]


class ShortensTheMask(FedAvg):
    """The first mask does not fit the model."""

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask = torch.ones(3, dtype=torch.bool)


class TestsWithSevenNumbers(FedAvg):
    """More sums than the task has."""

    @override
    def test(self, client: ClientModule, server: Server) -> torch.Tensor:
        return torch.ones(7)


class InvitesHalves(FedAvg):
    """Clients are whole numbers."""

    @override
    def select_cohort(self, round_: int, drawn: Sequence[int], num_clients: int) -> Sequence[int]:
        return [0.5, 1]  # type: ignore[list-item]


class BeginsAsIn01(FedAvg):
    """A step of version 0.1."""

    def begin(self, client: ClientModule, server: Server) -> None:
        server.memory["control"] = torch.zeros(1)


class AveragesAsIn01(FedAvg):
    """The signature of version 0.1."""

    def aggregate(self, server, uploads, comm):
        raise NotImplementedError
