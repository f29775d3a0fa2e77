"""pFedSD against numbers worked by hand: the direction of KL, T², and that the teacher is one's own previous model."""

from __future__ import annotations

import math

import pytest
import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

from pfl_lightning.algorithms import FedAvg, PFedSD
from pfl_lightning.algorithms.pfedsd import distillation, outputs_of
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop
from tests.helpers.visits import memory_of, open_client

CONTRACT = [PFedSD()]
LIKE_FEDAVG = [PFedSD(lam=0.0, bn_buffers="average")]


def test_distillation_by_hand():
    """T = 2, teacher logits (2 ln 3, 0) → (0.75, 0.25); student (0, 0) → (0.5, 0.5).

    KL = 0.75 ln 1.5 + 0.25 ln 0.5 ≈ 0.130812; × T² ≈ 0.523248. The gradient is T (q_s − q_t) = (−0.5, 0.5), half of it
    for λ = 0.5. With the arguments swapped KL would be 0.5 ln(2/3) + 0.5 ln 2 ≈ 0.143841.
    """
    student = torch.zeros(1, 2, requires_grad=True)
    value = 0.5 * distillation(student, torch.tensor([[2 * math.log(3), 0.0]]), temperature=2.0)
    value.backward()
    assert value.item() == pytest.approx(0.261624, abs=1e-6)
    assert student.grad.tolist() == [pytest.approx([-0.25, 0.25])]


def test_it_is_a_mean_over_the_batch():
    logits = torch.randn(4, 3), torch.randn(4, 3)
    single = torch.stack([distillation(s[None], t[None], 3.0) for s, t in zip(*logits, strict=True)])
    assert float(distillation(*logits, 3.0)) == pytest.approx(float(single.mean()), abs=1e-6)


def test_the_teacher_is_the_clients_model_after_its_last_training():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedSD())
    assert loop.store.get(0) is None
    for _ in range(2):
        loop.round()
        before = memory_of(loop, 0)["teacher"].clone()
        assert not torch.equal(before, loop.server.vector)
        open_client(loop, 0)
        loop.algorithm.download(loop.engine.client, loop.server)
        assert torch.equal(loop.engine.client.theta, loop.server.theta)
        loop.algorithm.fit(loop.engine.client, loop.server)
        assert torch.equal(loop.engine.client.memory["teacher"], loop.engine.client.vector)
        loop.engine.client.vector.zero_()
        assert loop.engine.client.memory["teacher"].abs().sum() > 0  # a copy
        assert torch.equal(memory_of(loop, 0)["teacher"], before)


def test_statistics_of_batchnorm_stay_with_the_client():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedSD(), rounds=1)
    loop.round()
    parameters = loop.server.layout.num_parameters
    assert torch.equal(loop.server.vector[parameters:], loop.server.initial[parameters:])
    open_client(loop, 0)
    loop.algorithm.download(loop.engine.client, loop.server)
    teacher = loop.engine.client.memory["teacher"]
    assert torch.equal(loop.engine.client.vector[parameters:], teacher[parameters:])
    assert not torch.equal(teacher[parameters:], loop.server.initial[parameters:])


def test_the_first_visit_is_fedavgs_and_the_second_is_not():
    runs = [toy_loop(Fabric(accelerator="cpu", devices=1), a) for a in (PFedSD(), FedAvg())]
    for same in (True, False):
        for run in runs:
            run.round()
        assert torch.equal(runs[0].server.theta, runs[1].server.theta) == same


def test_a_later_visit_trains_the_received_model():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedSD())
    client = loop.engine.client
    open_client(loop, 3)
    for _ in range(2):
        client.vector.copy_(loop.server.vector)
        loop.algorithm.fit(client, loop.server)
        assert not torch.equal(client.theta, loop.server.theta)
        assert torch.equal(client.memory["teacher"], client.vector)


def test_the_loss_of_a_batch():
    """Against another computation, for which the teacher is put into the live model."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedSD(lam=0.7, temperature=2.0))
    client = loop.engine.client
    open_client(loop, 3)
    loop.algorithm.fit(client, loop.server)
    teacher = client.memory["teacher"]
    x, y = next(client.batches("0"))
    with client.swap_in(teacher.clone()), torch.no_grad():
        client.task.eval()
        p = (client.task(x) / 2).double().softmax(1)
    assert torch.allclose((outputs_of(client, teacher, x) / 2).double().softmax(1), p)
    assert client.task.training
    torch.manual_seed(4)
    value = loop.algorithm.loss(client, teacher, (x, y))
    torch.manual_seed(4)
    logits = client.task(x).double()
    log_q = (logits / 2).log_softmax(1)
    expected = cross_entropy(logits, y) + 0.7 * 4 * (p * (p.log() - log_q)).sum(1).mean()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_teacher_leaves_no_gradient_and_no_statistics_behind():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedSD())
    loop.round()
    open_client(loop, 3)
    loop.algorithm.download(loop.engine.client, loop.server)
    before = loop.engine.client.vector.clone()
    advice = outputs_of(
        loop.engine.client, loop.engine.client.memory["teacher"], next(loop.engine.client.batches("0"))[0]
    )
    assert not advice.requires_grad
    assert torch.equal(loop.engine.client.vector, before)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"lam: -1 is not allowed; use a number >= 0"):
        PFedSD(lam=-1)
    with pytest.raises(ConfigError, match=r"temperature: 0 is not allowed; use a number > 0"):
        PFedSD(temperature=0)
    with pytest.raises(ConfigError, match=r"task: PFedSD works on classes"):
        ScalarClients(PFedSD(), targets=[1], sizes=[1], steps=1)
