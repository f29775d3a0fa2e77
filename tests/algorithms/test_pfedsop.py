"""pFedSOP against numbers worked by hand and a plain NumPy federation."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import Local, PFedSOP
from pfl_lightning.algorithms.pfedsop import angle, fisher_step, gompertz
from pfl_lightning.foundation.errors import ConfigError
from tests.algorithms.test_fedobp import SIZES, TARGETS, model_of
from tests.helpers.ranks import run_on_ranks
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop
from tests.helpers.visits import memory_of

CONTRACT = [PFedSOP(eta1=0.5, rho=0.1), PFedSOP(eta1=0.5, carry="personalized", personalization=False)]
LIKE_LOCAL = [PFedSOP(eta1=0.0)]


class OnQuadratics(PFedSOP):
    """Lets the method loose on real-valued targets, where its numbers can be worked by hand."""

    def check(self, task, data) -> None:
        pass


def test_the_step_is_the_dense_solution():
    """(ΔΔᵀ + ρI)⁻¹Δ with the whole matrix, in float64, and Eq. 18 as it is printed."""
    rng = np.random.default_rng(0)
    for d, rho in ((1, 1.0), (4, 0.001), (9, 1.0), (30, 100.0)):
        update = rng.normal(size=d) * 3
        dense = np.linalg.solve(np.outer(update, update) + rho * np.eye(d), update)
        printed = update / rho - update * (update @ update) / (rho**2 + rho * (update @ update))
        step = fisher_step(torch.from_numpy(update), rho).numpy()
        np.testing.assert_allclose(step, dense, rtol=1e-9)
        np.testing.assert_allclose(step, printed, rtol=1e-6)


def test_the_collapsed_form_keeps_its_digits_where_eq_18_loses_them():
    update = torch.full((1000,), 100.0)
    rho, square = torch.tensor(1e-3), (update @ update)
    printed = update / rho - update * square / (rho**2 + rho * square)
    exact = 100 / (1e-3 + 1e7)
    assert fisher_step(update, 1e-3)[0].item() == pytest.approx(exact, rel=1e-6)
    assert printed[0].item() != pytest.approx(exact, rel=0.1)


def test_gompertz_weight_at_known_angles():
    """1 − exp(−e) at 0, 1 − 1/e at 1 rad, 1 − exp(−exp(1 − π/2)) and 1 − exp(−exp(1 − π))."""
    for theta, beta in ((0.0, 0.934), (1.0, 0.632), (math.pi / 2, 0.432), (math.pi, 0.111)):
        assert gompertz(theta, 1.0) == pytest.approx(beta, abs=6e-4)
    assert gompertz(0.0, 5.0) > gompertz(0.0, 1.0)
    assert gompertz(0.0, 1e6) == 1.0
    assert gompertz(math.pi, 1e6) == 0.0


@pytest.mark.parametrize(
    "made", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p), None]
)
def test_only_plain_sgd_makes_delta_the_sum_of_gradients(made):
    optimizer = (made or torch.optim.SGD)([torch.zeros(1, requires_grad=True)])
    task = SimpleNamespace(optimization=lambda: SimpleNamespace(optimizer=optimizer, schedules=[] if made else [1]))
    data = SimpleNamespace(samples=SimpleNamespace(y=torch.zeros(1, dtype=torch.int64)), name="some data")
    with pytest.raises(ConfigError, match="SGD without momentum and without a scheduler"):
        PFedSOP().check(task, data)


def test_angles():
    e1, e2 = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    assert angle(e1, e2) == pytest.approx(math.pi / 2)
    assert angle(e1, -3 * e1) == pytest.approx(math.pi)
    for seed in range(40):  # a third of these cosines is rounded to more than 1, or to less than −1
        a = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        assert angle(a, 2 * a) == pytest.approx(0.0, abs=1e-6)
        assert angle(a, -2 * a) == pytest.approx(math.pi, abs=1e-6)


def numpy_federation(cohorts, carry="trained", personalization=True, lam=1.0, rho=1.0, eta1=0.5, lr=0.1, steps=2):
    """Algorithms 1 to 3 in NumPy, with the dense matrix. Yields the global update and the three clients' models."""
    targets = np.array(TARGETS)
    d = targets.shape[1]
    models, updates, shared = [np.zeros(d) for _ in targets], [None] * 3, None

    def personalized(i):
        if updates[i] is None:
            return models[i].copy()
        cosine = updates[i] @ shared / np.linalg.norm(updates[i]) / np.linalg.norm(shared)
        beta = 1 - np.exp(-np.exp(-lam * (np.arccos(cosine) - 1))) if personalization else 1.0
        mixed = (1 - beta) * updates[i] + beta * shared
        return models[i] - eta1 * np.linalg.inv(np.outer(mixed, mixed) + rho * np.eye(d)) @ mixed

    for cohort in cohorts:
        for i in cohort:
            start = personalized(i)
            x = start.copy()
            for _ in range(steps):
                x = x - lr * (x - targets[i])
            updates[i] = (start - x) / lr
            models[i] = x if carry == "trained" else start
        shared = np.mean([updates[i] for i in cohort], axis=0)
        yield shared, [personalized(i) for i in range(3)]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize(
    "settings",
    [
        {"eta1": 0.5},
        {"eta1": 0.7, "carry": "personalized", "rho": 0.2, "lam": 2.0},
        {"eta1": 0.5, "personalization": False},
    ],
)
def test_rounds_with_three_clients_against_numpy(settings, participation, world):
    def work(fabric: Fabric):
        algorithm = OnQuadratics(**settings)
        run = ScalarClients(algorithm, TARGETS, SIZES, steps=2, participation=participation, fabric=fabric)
        seen = []
        for _ in range(6):
            cohort = run.rounds(1)
            mine = [c for c in range(3) if run.loop.store.home[c] in (-1, fabric.global_rank)]
            clients = {c: model_of(run, c).tolist() for c in mine}
            seen.append((cohort, run.loop.server.memory["update"].tolist(), clients))
        return seen

    for seen in run_on_ranks(work, world):
        expected = numpy_federation([cohort for cohort, _, _ in seen], **settings)
        for (_, shared, clients), (shared_expected, clients_expected) in zip(seen, expected, strict=True):
            assert shared == pytest.approx(shared_expected.tolist(), abs=1e-4)
            for client, value in clients.items():
                assert value == pytest.approx(clients_expected[client].tolist(), abs=1e-4)


def test_a_round_by_hand():
    """a = (4, −2), lr 0.1, two steps from 0: x = 0.19a = (0.76, −0.38), Δ_i = −x/0.1 = (−7.6, 3.8), whatever n is.

    Δ = −1.9, the plain mean. In one dimension client 0 has angle 0, client 1 has angle π: β = 0.934012 and 0.110831,
    Δ_p = −2.276 and 3.168, steps Δ_p/(1 + Δ_p²).
    """
    run = ScalarClients(OnQuadratics(eta1=1.0), targets=[4, -2], sizes=[1, 3], steps=2)
    run.rounds(1)
    assert float(run.loop.server.memory["update"]) == pytest.approx(-1.9, abs=1e-5)
    expected = []
    for own, beta, value in ((-7.6, 1 - math.exp(-math.e), 0.76), (3.8, 1 - math.exp(-math.exp(1 - math.pi)), -0.38)):
        mixed = (1 - beta) * own + beta * -1.9
        expected.append(value - mixed / (1 + mixed**2))
    assert run.client_values() == pytest.approx(expected, abs=1e-5)


def test_the_learning_rate_of_the_optimizer_is_eta2():
    """Three steps of any size: Δ = Σ gradients = (x⁰ − x³)/lr."""
    run = ScalarClients(OnQuadratics(), targets=[4], sizes=[1], steps=3, lr=0.5)
    run.rounds(1)
    assert float(run.loop.server.memory["update"]) == pytest.approx(-(4 + 2 + 1), abs=1e-5)


@pytest.mark.parametrize("lr", [0.1, 0.2])
def test_without_eta1_one_rate_serves_as_both(lr):
    ends = []
    for eta1 in (None, lr, 0.5):
        run = ScalarClients(OnQuadratics(eta1=eta1), targets=[4, -2], sizes=[1, 3], steps=2, lr=lr)
        run.rounds(2)
        ends.append(run.client_values())
    assert ends[0] == ends[1]
    assert ends[0] != ends[2]


def test_a_client_that_was_not_drawn_uses_its_latest_update_and_a_new_one_the_initial_model():
    run = ScalarClients(OnQuadratics(eta1=1.0), targets=[4, -2], sizes=[1, 1], steps=1, participation=0.5, start=[1.0])
    seen = [run.rounds(1)[0]]
    new = 1 - seen[0]
    assert run.client_values()[new] == 1.0
    while seen[-1] == seen[0]:
        seen += run.rounds(1)
    old = run.loop.store.states[seen[0]]
    own, shared = float(memory_of(run.loop, seen[0])["update"]), float(run.loop.server.memory["update"])
    beta = gompertz(0.0 if own * shared > 0 else math.pi, 1.0)
    mixed = (1 - beta) * own + beta * shared
    assert run.client_values()[seen[0]] == pytest.approx(float(old["personal"]) - mixed / (1 + mixed**2), abs=1e-5)


def test_what_is_carried_to_the_next_visit():
    """Both test the trained model after training. `personalized` goes back to where that started, BatchNorm's
    statistics excepted: nothing else would ever set them.
    """
    for carry in ("trained", "personalized"):
        algorithm = PFedSOP(carry=carry, eta1=0.5)
        loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, rounds=2, local_epochs=1)
        loop.fit()
        state, initial, p = loop.store.states[3], loop.server.initial, loop.server.layout.num_parameters
        moved = float((state["personal"][:p] - initial[:p]).norm())
        assert (moved <= 0.5 * 0.5 + 1e-6) == (carry == "personalized")  # one step is at most η₁/(2√ρ) long
        assert not torch.equal(state["personal"][p:], initial[p:])
        assert set(state) == {"memory/update", "visits", "mask", "personal"}


def test_bytes_of_a_round():
    """99 floats up from each of seven; down only to those who have been there before."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedSOP(), rounds=2)
    loop.round()
    assert (loop.history.up_bytes, loop.history.down_bytes) == (7 * 99 * 4, 0)
    loop.round()
    assert (loop.history.up_bytes, loop.history.down_bytes) == (2 * 7 * 99 * 4, 7 * 99 * 4)


def test_without_local_steps_nothing_moves_and_nothing_is_nan():
    run = ScalarClients(OnQuadratics(), targets=[4, -2], sizes=[1, 1], steps=0, start=[1.5])
    run.rounds(3)
    assert run.client_values() == [1.5, 1.5]


def test_a_regression_task_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm: pFedSOP needs a classification task") as refused:
        ScalarClients(PFedSOP(), targets=[4], sizes=[1], steps=1)
    assert "\n" not in str(refused.value)
    ScalarClients(Local(), targets=[4], sizes=[1], steps=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rho": 0.0}, r"rho: 0.0 is not allowed; use a number above 0"),
        ({"rho": -1.0}, r"rho: -1.0 is not allowed"),
        ({"lam": 0.0}, r"lam: 0.0 is not allowed; use a number above 0"),
        ({"eta1": -0.1}, r"eta1: -0.1 is not allowed; use a number >= 0"),
        ({"carry": "global"}, r"carry: 'global' is not allowed; use trained or personalized"),
        ({"bn_buffers": "average"}, r"bn_buffers: 'average' is not allowed; use local"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PFedSOP(**settings)


def test_an_update_with_zeros_in_it_is_an_update():
    """Own and global update (1, 0), η₁ = ρ = 1: the step is (1, 0)/2. An update of nothing but zeros makes none."""
    method = PFedSOP(eta1=1.0, rho=1.0)
    update = torch.tensor([1.0, 0.0])
    for shared, start in ((update, [-0.5, 0.0]), (torch.zeros(2), [0.0, 0.0])):
        client = SimpleNamespace(theta=torch.zeros(2), memory={"update": update}, learning_rate=0.1)
        method.download(client, SimpleNamespace(memory={"update": shared}))
        assert client.theta.tolist() == start
