"""Clients that train together download and upload together, where the method has the usual steps."""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import ref

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm, ClientModule, Exchange, Server, Upload
from pfl_lightning.algorithms import FedAvg, FedBABU, FedOBP, FedPer
from pfl_lightning.callback import Callback
from pfl_lightning.comm.exact_mean import ExactMean
from pfl_lightning.comm.uploads import Uploads
from pfl_lightning.engine import stopwatch
from pfl_lightning.engine.engine import VisitResult
from pfl_lightning.foundation.errors import AlgorithmError, DivergedError
from tests.helpers.pretended_gpu import PretendedGpu
from tests.helpers.toy import PlainNet, fingerprint, toy_loop
from tests.helpers.uploads import adversarial_uploads


def make_loop(algorithm: Algorithm, **config: Any) -> Any:
    fabric = Fabric(accelerator="cpu", devices=1)
    return toy_loop(fabric, algorithm, net=PlainNet, **{"rounds": 2, "eval_every": 0, "clients_per_step": 4, **config})


class Unequal(FedAvg):
    """Every client keeps other entries, and one of them none."""

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask[: 20 * client.id] = True


class OwnSteps(Unequal):
    """Its download and upload do the usual things, but the engine cannot know that."""

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        return super().upload(client, server)


class Draws(FedAvg):
    """Every client sends half of the entries, drawn at random."""

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        return Exchange(client.mask, torch.rand(client.layout.size) < 0.5)


class DrawsInOwnSteps(Draws, OwnSteps):
    """The same, client by client."""

    setup = FedAvg.setup


class Shortens(FedAvg):
    """One client breaks its mask."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        if client.id == 3:
            client.mask = client.mask[:3]


@pytest.mark.parametrize(
    ("algorithm", "together"),
    [(FedAvg(), True), (FedPer(), True), (FedBABU(), True), (OwnSteps(), False), (FedOBP(quantile=0.8), False)],
    ids=lambda value: type(value).__name__,
)
def test_usual_steps_are_taken_for_a_whole_group(algorithm, together, monkeypatch):
    """Groups of 4 and 3 clients in each of two rounds."""
    received, added = list[int](), list[int]()
    receive, add = ClientModule.receive, Uploads.add
    monkeypatch.setattr(ClientModule, "receive", lambda client, vector: received.append(1) or receive(client, vector))
    monkeypatch.setattr(Uploads, "add", lambda all_, ups, *rest: added.append(len(ups)) or add(all_, ups, *rest))
    make_loop(algorithm).fit()
    assert len(received) == (0 if together else 14)
    assert added == ([4, 3, 4, 3] if together else [1] * 14)


@pytest.mark.parametrize("pair", [(Unequal(), OwnSteps()), (Draws(), DrawsInOwnSteps())], ids=["kept", "drawn"])
def test_a_group_gives_the_bits_of_its_clients_one_by_one(pair):
    """The same method with and without steps of its own: only the way of the states to the server and back differs."""
    one, other = (fingerprint(make_loop(algorithm).fit()) for algorithm in pair)
    assert {**one, "algorithm": None} == {**other, "algorithm": None}


def test_a_group_waits_once_for_its_numbers():
    """FedAvg: for the counts of personal entries, for the numbers of all three visits, and for the upload."""
    waits = Counter[str]()
    for algorithm in (FedAvg(), OwnSteps()):
        with PretendedGpu() as gpu:
            loop = make_loop(algorithm, num_clients=3, clients_per_step=3)
            loop.round()
            gpu.waits.clear()
            loop.round()
            waits[type(algorithm).__name__] = gpu.waits.total()
    assert waits == {"FedAvg": 3, "OwnSteps": 9}


@pytest.mark.parametrize("algorithm", [Unequal, OwnSteps])
def test_each_client_of_a_group_has_its_own_seconds(algorithm, monkeypatch):
    """Here a second passes whenever the entries that travel are asked for: once in each direction."""
    now, found = [0.0], list[dict[str, float]]()

    class Slow(algorithm):  # type: ignore[misc, valid-type]
        @override
        def exchange(self, client: ClientModule) -> Exchange:
            now[0] += 1
            return super().exchange(client)

    class Keep(Callback):
        @override
        def on_visit_end(self, result: VisitResult) -> None:
            found.append(result.phases)

    monkeypatch.setattr(stopwatch, "perf_counter", lambda: now[0])
    make_loop(Slow()).round([Keep()])
    assert [(phases["download"], phases["upload"]) for phases in found] == [(1, 1)] * 7


@pytest.mark.parametrize("count", [1, 4])
def test_uploaded_models_are_gone_when_the_next_clients_train(count):
    uploaded, kept = list[ref[Tensor]](), list[int]()

    class Looks(FedAvg):
        @override
        def fit(self, client: ClientModule, server: Server) -> None:
            kept.append(sum(model() is not None for model in uploaded))

    class Note(Callback):
        @override
        def on_visit_end(self, result: VisitResult) -> None:
            uploaded.append(ref(result.upload.values["vector"]))

    make_loop(Looks(), clients_per_step=count).round([Note()])
    assert kept == [0] * 7


def test_a_mask_that_does_not_fit_is_named():
    with pytest.raises(AlgorithmError, match=r"Shortens makes client.mask bool \[3\]; it must be bool"):
        make_loop(Shortens()).round()


def test_a_diverged_client_of_a_group_is_named():
    class Breaks(FedAvg):
        @override
        def fit(self, client: ClientModule, server: Server) -> None:
            client.train_epochs()
            if client.id == 5:
                client.vector[3] = torch.nan

    with pytest.raises(DivergedError, match="client 5 diverged in round 1"):
        make_loop(Breaks(), test_every=2).round()


@pytest.mark.parametrize("sends", ["all", "parts", "some"])
@pytest.mark.parametrize("group", [2, 6])
def test_values_added_together_give_the_bits_of_one_by_one(sends, group):
    """Everybody sends everything, a part, or every second client a part."""
    uploads = adversarial_uploads(partial=sends != "all")
    for upload in uploads[::2] if sends == "some" else []:
        upload.sends.clear()
    apart, together = (ExactMean({"vector": torch.zeros(300)}) for _ in range(2))
    for upload in uploads:
        assert apart.add(upload.values, upload.weight, upload.sends)
    for start in range(0, 6, group):
        part = uploads[start : start + group]
        assert together.add_all([u.values for u in part], [u.weight for u in part], [u.sends for u in part]).all()
    current = {"vector": torch.full((300,), 7.0)}
    assert torch.equal(apart.result(current)["vector"], together.result(current)["vector"])
    assert torch.equal(apart.sums, together.sums)


def test_only_the_client_that_does_not_fit_is_told():
    values: list[dict[str, Tensor]] = [{"vector": torch.full((3,), value)} for value in (1.0, torch.inf, 2.0, 1e9)]
    total = ExactMean(values[0])
    assert total.add_all(values, [0.25] * 4, [{}] * 4).tolist() == [True, False, True, False]
