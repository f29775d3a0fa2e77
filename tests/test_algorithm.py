"""The interface of algorithms: masks decide what travels, memories have their own names, replies reach their client."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm, ClientModule, Exchange, Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms import FedAvg
from pfl_lightning.model import masks
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import fingerprint, interrupted_summary, toy_loop, toy_summary
from tests.helpers.visits import memory_of, open_client


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


class KeepsHead(Algorithm):
    """Sets a mask and overrides nothing else."""

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask.copy_(masks.by_module(client.task, client.layout, client.task.net.head))


def test_masked_entries_stay_with_the_client_and_are_not_sent():
    """The head has 8·3 + 3 = 27 of 115 entries. The server's head stays as it was, and clients keep theirs."""
    loop = toy_loop(one_rank(), KeepsHead(), rounds=2)
    scalars = [loop.round().scalars for _ in range(2)]
    head = open_client(loop, 0).mask.clone()
    assert int(head.sum()) == 27
    assert torch.equal(loop.server.vector[head], loop.server.initial[head])
    assert not torch.equal(loop.server.vector[~head], loop.server.initial[~head])
    assert [(s["up_bytes"], s["down_bytes"]) for s in scalars] == [(7 * 4 * 88, 7 * 4 * 88)] * 2
    heads = {tuple(loop.store.states[client]["personal"].tolist()) for client in range(7)}
    assert len(heads) == 7
    plain = toy_loop(one_rank(), FedAvg(), rounds=2)
    plain.fit()
    assert not torch.equal(loop.server.vector[~head], plain.server.vector[~head]), "it is not FedAvg"


def test_an_exchange_sends_all_that_is_not_kept_unless_it_says_otherwise():
    keeps = torch.tensor([True, False, False])
    assert Exchange(keeps).sent_entries().tolist() == [False, True, True]  # type: ignore[union-attr]
    assert Exchange(keeps).count() == 2
    assert Exchange(~keeps & keeps).sent_entries() is None, "the whole model"
    assert Exchange(keeps, torch.ones(3).bool()).sent_entries() is None
    assert Exchange(keeps, torch.tensor([False, False, True])).count() == 1


class TakesTheNames(FedAvg):
    """Keeps a memory under the names of the package's own entries, beside a real mask."""

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask[::2] = True
        client.memory |= {"visits": torch.tensor([100.0]), "mask": torch.arange(3), "personal": torch.tensor(client.id)}
        client.memory["memory/visits"] = torch.tensor(-1)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        assert client.memory["visits"].tolist() == [100.0 + client.visits]
        assert client.memory["mask"].tolist() == [client.visits, client.visits + 1, client.visits + 2]
        assert int(client.memory["personal"]) == client.id
        assert int(client.memory["memory/visits"]) == -1
        assert int(client.mask.sum()) == 58
        client.memory["visits"] += 1
        client.memory["mask"] += 1


def test_a_memory_may_have_the_names_of_the_packages_own_entries(tmp_path):
    """Over visits, migrations and checkpoints."""
    settings = {"participation": 0.6, "eval_every": 2}
    whole = toy_summary(1, TakesTheNames(), rounds=6, **settings)
    resumed = interrupted_summary(tmp_path, {2: 2, 4: 3, 6: 1}, TakesTheNames(), **settings)
    assert fingerprint(resumed) == fingerprint(whole)
    loop = toy_loop(one_rank(), TakesTheNames(), rounds=2)
    loop.fit()
    client = open_client(loop, 3)
    assert (client.visits, client.memory["visits"].tolist()) == (2, [102.0])


class Greets(FedAvg):
    """Replies to every client on every rank, also to clients that do not take part."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        values = {client: torch.tensor([client, server.round]) for client in range(server.num_clients)}
        return [(client, Reply({"greeting": value})) for client, value in values.items()]


def test_a_reply_reaches_its_client_and_no_other():
    def work(fabric: Fabric) -> dict[int, list[int]]:
        loop = toy_loop(fabric, Greets(), participation=0.4, rounds=2)
        cohorts = [loop.round().cohort for _ in range(2)]
        found = {client: memory_of(loop, client)["greeting"].tolist() for client in loop.store.states}
        for client, greeting in found.items():
            assert greeting == [client, 2 if client in cohorts[1] else 1]
        return found

    (one,) = run_on_ranks(work, 1)
    first, second = run_on_ranks(work, 2)
    assert 3 <= len(one) < 7, "some clients were never drawn"
    assert not first.keys() & second.keys()
    assert first | second == one


class RepliesOneByOne(FedAvg):
    """The whole server step is a generator: it makes a reply when the loop asks for one."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies:
        server.vector.copy_(uploads.mean({"vector": server.vector})["vector"])
        for client in uploads.local:
            yield client, Reply({"round": torch.tensor(server.round)})


def test_a_server_step_may_be_a_generator():
    summaries = [toy_summary(world, RepliesOneByOne(), rounds=3, participation=0.6) for world in (1, 2)]
    plain = toy_summary(1, FedAvg(), rounds=3, participation=0.6)
    assert {summary["model_sha256"] for summary in summaries} == {plain["model_sha256"]}
    assert summaries[0]["clients_sha256"] == summaries[1]["clients_sha256"] != plain["clients_sha256"]
    loop = toy_loop(one_rank(), RepliesOneByOne(), rounds=3)
    loop.fit()
    assert {int(memory_of(loop, client)["round"]) for client in range(7)} == {3}


class SetsPersonalEntries(KeepsHead):
    """The server sets the personal entries of every client to its number."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies:
        super().aggregate(server, uploads)
        for client in uploads.local:
            yield client, Reply(personal=torch.full((27,), float(client)))


def test_a_reply_may_replace_the_personal_entries():
    loop = toy_loop(one_rank(), SetsPersonalEntries(), rounds=1)
    loop.round()
    client = open_client(loop, 5)
    loop.algorithm.download(client, loop.server)
    assert (client.vector[client.mask] == 5.0).all()
    assert torch.equal(client.vector[~client.mask], loop.server.vector[~client.mask])


class ChangesItsUpload(FedAvg):
    """Uploads twice its model, in place. Personal entries must not double."""

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask[:10] = True

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        return Exchange(client.mask, torch.ones_like(client.mask))

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        upload.values["vector"] *= 2
        return upload


def test_an_upload_may_be_changed_without_changing_the_client():
    plain, doubled = (toy_loop(one_rank(), algorithm, rounds=1) for algorithm in (Kept(), ChangesItsUpload()))
    for loop in (plain, doubled):
        loop.round()
    assert torch.equal(doubled.server.vector, 2 * plain.server.vector)
    for client in range(7):
        assert torch.equal(doubled.store.states[client]["personal"], plain.store.states[client]["personal"])


class Kept(ChangesItsUpload):
    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        return FedAvg.upload(self, client, server)


def server_of(vector: list[float], **memory: Any) -> Server:
    tensors = {name: torch.tensor(value) for name, value in memory.items()}
    return Server(torch.tensor(vector), torch.zeros(len(vector)), None, 1, memory=tensors)  # type: ignore[arg-type]


def test_the_fingerprint_sees_every_change_of_the_model_and_the_memory():
    servers = [
        server_of([1.0, 2.0, 3.0]),
        server_of([2.0, 1.0, 3.0]),
        server_of([1.0, 2.0, 3.0], a=[1.0, 0.0]),
        server_of([1.0, 2.0, 3.0], a=[0.0, 1.0]),
        server_of([1.0, 2.0, 3.0], b=[1.0, 0.0]),
        server_of([1.0, 2.0, 3.0], a=[1, 0]),
        server_of([1.0, 2.0, 3.0], a=[True, False]),
        server_of([1.0, 2.0, 3.0], a=[1.0, 0.0], b=[0.0, 0.0]),
        server_of([1.0, 2.0, 3.0], a=[0.0, 0.0], b=[1.0, 0.0]),
        server_of([1.0, 2.0, -3.0]),
        server_of([1.0, 2.0, 3.0000002]),
    ]
    assert len({server.fingerprint() for server in servers}) == len(servers)
    assert (
        server_of([1.0, 2.0], a=[3.0], b=[4.0]).fingerprint() == server_of([1.0, 2.0], b=[4.0], a=[3.0]).fingerprint()
    )


def test_a_round_that_is_given_up_leaves_the_server_as_it_was():
    server = server_of([1.0, 2.0], a=[3.0])
    before = server.fingerprint()
    working = server.next_round()
    working.vector += 1
    working.memory["a"] += 1
    assert (server.fingerprint(), server.round, working.round) == (before, 0, 1)
