"""A visit is a value: its result does not follow the live model, and the loop does not collect results."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import ClientModule, Server, Upload
from pfl_lightning.algorithms import FedAvg
from pfl_lightning.engine.engine import Invitation
from tests.helpers.toy import PlainNet, toy_loop

ENGINES: list[dict[str, Any]] = [{}, {"clients_per_step": 3}]
PLAIN: dict[str, Any] = {"net": PlainNet, "eval_every": 0}


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


class Aliasing(FedAvg):
    """Uploads the live tensors themselves, and notes how they were."""

    seen: dict[int, dict[str, Tensor]]

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask[client.id] = True

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        extra = {"theta": client.theta, "part": client.vector[3:7], "gradient": client.grad, "mask": client.mask}
        self.seen[client.id] = {name: t.clone() for name, t in {"vector": client.vector, **extra}.items()}
        return Upload(client.id, {"vector": client.vector}, client.weight, {"vector": client.mask}, extra)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_uploads_that_alias_the_live_model_are_copied(engine):
    algorithm = Aliasing()
    algorithm.seen = {}
    loop = toy_loop(one_rank(), algorithm, **PLAIN, **engine)
    plan = loop.engine.plan(range(7), [1.0] * 7, [-1] * 7)
    groups = loop.engine.run(plan, lambda c: Invitation(c, 1 / 7, None), loop.server.next_round())
    results = [result for group in groups for result in group]
    assert len(results) == len(algorithm.seen) == 7
    for result in results:
        seen, upload = algorithm.seen[result.client], result.upload
        assert torch.equal(upload.values["vector"], seen["vector"])
        assert torch.equal(upload.sends["vector"], seen["mask"])
        for name, tensor in upload.extra.items():
            assert torch.equal(tensor, seen[name]), name


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_loop_holds_one_uploaded_model_at_a_time(engine):
    """Whatever the size of the cohort: the model of the last client may be there when the next one makes its own."""
    models: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    class Counting(FedAvg):
        @override
        def upload(self, client: ClientModule, server: Server) -> Upload:
            alive.append(sum(model() is not None for model in models))
            upload = super().upload(client, server)
            upload.extra["note"] = torch.zeros(2)
            models.append(weakref.ref(upload.values["vector"]))
            return upload

    toy_loop(one_rank(), Counting(), **PLAIN, **engine).round()
    assert len(alive) == 7
    assert max(alive) <= 1
    assert not any(model() is not None for model in models)
