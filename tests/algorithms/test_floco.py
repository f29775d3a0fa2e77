"""FLOCO and FLOCO+ against numbers worked by hand: projection, energy, endpoint gradients, regions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from pfl_lightning.algorithms import FedAvg, Floco, FlocoPlus
from pfl_lightning.algorithms.parts.simplex import SimplexHead, centers, principal_components, project, riesz_energy
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.points import opened
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop, toy_summary

CONTRACT = [Floco(endpoints=3, tau=6, rho=0.3), FlocoPlus(endpoints=2, tau=6, personal_epochs=1)]


@pytest.mark.parametrize(("size", "expected"), [(1.0, [0.65, 0.35, 0]), (0.5, [0.8, 0.2, 0]), (0.1, [1, 0, 0])])
def test_projection_by_hand(size, expected):
    """(0.8, 0.5, −0.1) on the simplex of size z: two entries less (1.3 − z)/2 each; for z = 0.1 the first alone."""
    assert project(torch.tensor([[0.8, 0.5, -0.1]], dtype=torch.float64), size)[0].tolist() == pytest.approx(expected)


def test_energy_by_hand():
    """log of the mean of 1/d²: d² = 2 → −ln 2; d² = ½ → ln 2; three points with d² = ½, ½, 2 → ln 1.5."""
    sets = [[[1, 0], [0, 1]], [[0.75, 0.25], [0.25, 0.75]], [[1, 0], [0.5, 0.5], [0, 1]], [[1, 0], [1, 0]]]
    energies = [riesz_energy(torch.tensor(points, dtype=torch.float64)) for points in sets]
    assert energies == pytest.approx([-0.693147, 0.693147, 0.405465, np.log(1e8)], abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_principal_components_against_numpy(seed):
    vectors = np.random.default_rng(seed).normal(size=(6, 20))
    centred = vectors - vectors.mean(0)
    scores = centred @ np.linalg.svd(centred)[2][:3].T
    scores *= np.sign(scores[np.abs(scores).argmax(0), range(3)])
    found = principal_components(torch.from_numpy(vectors @ vectors.T), 3).numpy()
    assert found == pytest.approx(scores, abs=1e-8)
    small = principal_components(torch.from_numpy(vectors @ vectors.T) / 100, 3).numpy()
    assert small == pytest.approx(scores / 10, abs=1e-8)
    shifted = vectors + 5.0  # models or their differences to a common point: the same
    assert principal_components(torch.from_numpy(shifted @ shifted.T), 3).numpy() == pytest.approx(scores, abs=1e-6)


def test_centers_keep_alike_clients_together():
    vectors = np.array([[5, 0, 0], [5.1, 0, 0], [0, 5, 0], [0, 5.1, 0], [0, 0, 5.0]])
    found = centers(torch.from_numpy(vectors @ vectors.T), 3)
    assert found.sum(1).tolist() == pytest.approx([1] * 5)
    assert float(found.min()) >= 0
    apart = torch.cdist(found, found)
    assert float(apart[0, 1]) < 0.2 * float(apart[0, 2])
    assert float(apart[2, 3]) < 0.2 * float(apart[2, 4])


def test_two_clients_stand_at_opposite_ends_and_one_in_the_middle():
    assert centers(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64), 2).sort(0).values.tolist() == [
        [0, 0],
        [1, 1],
    ]
    assert centers(torch.ones(1, 1, dtype=torch.float64), 2).tolist() == [[0.5, 0.5]]


def test_of_all_simplex_sizes_the_best_is_taken():
    """Three clients on a line at s = 0.3, −0.2, −0.1, two endpoints: on the simplex of size z a client stands at
    α₁ = ½ + s/2z, within 0 and 1. A plain search over z for the least mean of 1/d², d² = 2(α₁ − α₁')².
    """
    s = np.array([0.3, -0.2, -0.1])
    first, second = np.array([0, 0, 1]), np.array([1, 2, 2])
    places = [np.clip(0.5 + s / (2 * z), 0, 1) for z in np.linspace(1e-4, 1, 1000)]
    energies = [np.mean(1 / np.maximum(2 * (a[first] - a[second]) ** 2, 1e-8)) for a in places]
    best = places[int(np.argmin(energies))]
    found = centers(torch.from_numpy(np.outer(s, s)), 2)
    assert found[:, 0].tolist() == pytest.approx(best.tolist(), abs=1e-6)
    assert energies[-1] > 5 * min(energies)  # neither the largest size
    assert energies[0] > 5 * min(energies)  # nor the smallest


def test_fewer_clients_than_endpoints():
    assert centers(torch.tensor([[3.0]], dtype=torch.float64), 4).tolist() == [[0.25] * 4]
    assert centers(torch.tensor([[3.0, 0.0], [0.0, 3.0]], dtype=torch.float64), 4).sum(1).tolist() == pytest.approx(
        [1, 1]
    )


def head_by_hand() -> SimplexHead:
    """Three endpoints 1, 2, 3 of a 1 × 1 weight."""
    head = SimplexHead(nn.Linear(1, 1), 3)
    head.endpoints.data.copy_(torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
    head.bias.data.zero_()
    head.center.copy_(torch.tensor([0.65, 0.35, 0.0]))
    return head


def test_weight_and_endpoint_gradients_by_hand():
    """α = (0.65, 0.35, 0): W = 0.65 + 0.7 = 1.35, and the gradient of endpoint m is α_m times that of W, here z = 2."""
    head = head_by_hand().eval()
    value = head(torch.tensor([[2.0]]))
    assert value.item() == pytest.approx(2.7)
    value.backward()
    assert head.endpoints.grad.flatten().tolist() == pytest.approx([1.3, 0.7, 0])


def test_points_of_training():
    """Before: uniform on the simplex, so the mean is its middle and an entry's variance (M − 1)/(M²(M + 1)) = 1/18.
    After: within ρ of the center in L1, on all sides.
    """
    torch.manual_seed(0)
    head = head_by_hand()
    points = torch.stack([head.draw() for _ in range(4000)])
    assert points.sum(1).tolist() == pytest.approx([1] * 4000, abs=1e-5)
    assert points.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.02)
    assert points.var(0).tolist() == pytest.approx([1 / 18] * 3, abs=0.006)
    head.radius.fill_(0.2)
    head.train()
    away = torch.stack([head.draw() for _ in range(4000)]) - head.center
    lengths = away.abs().sum(1)
    assert float(lengths.max()) <= 0.2 + 1e-6
    assert float(lengths.mean()) == pytest.approx(0.1, abs=0.01)
    assert away.mean(0).tolist() == pytest.approx([0, 0, 0], abs=0.01)
    head.radius.fill_(0.0)
    head.train()
    assert torch.equal(head.draw(), head.center)


def test_endpoints_start_apart_and_one_endpoint_is_the_head():
    layer = nn.Linear(4, 3)
    assert torch.equal(SimplexHead(layer, 1).endpoints[0], layer.weight)
    for count in (2, 3):
        endpoints = SimplexHead(layer, count).endpoints
        assert len({e.detach().numpy().tobytes() for e in endpoints}) == count


@pytest.mark.parametrize("settings", [{"tau": 100}, {"tau": 2, "rho": 0.0}])
def test_one_endpoint_is_fedavg(settings):
    """The same parameters and results, but for center and radius, which lie behind them in the model; and α is drawn,
    so dropout must be off for the random numbers to agree.
    """

    def run(algorithm):
        loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, rounds=4)
        loop.engine.client.task.net.body[3].p = 0.0
        return loop, loop.fit()

    (one, summary), (other, expected) = run(Floco(endpoints=1, **settings)), run(FedAvg())
    assert torch.equal(one.server.theta, other.server.theta)
    assert summary["last"]["all_loss_before"] == pytest.approx(expected["last"]["all_loss_before"], rel=1e-6)


def test_everybody_takes_part_in_round_tau_and_gets_a_region():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Floco(endpoints=3, tau=2, rho=0.2), participation=0.4)
    sizes = []
    for _ in range(3):
        sizes.append(len(loop.round().cohort))
        if loop.server.round == 1:
            head = opened(loop, 0).task.net.head
            assert (head.center.tolist(), float(head.radius)) == (pytest.approx([1 / 3] * 3), -1)
    assert sizes == [3, 7, 3]
    regions = []
    for client in range(7):
        head = opened(loop, client).task.net.head
        assert float(head.radius) == pytest.approx(0.2)
        regions.append(head.center.tolist())
    assert len({tuple(r) for r in regions}) > 1
    server = loop.engine.client.layout.views(loop.server.vector)
    assert (server["net.head.center"].tolist(), float(server["net.head.radius"])) == (pytest.approx([1 / 3] * 3), -1)


@pytest.mark.parametrize("algorithm", [Floco(endpoints=3, tau=2), FlocoPlus(endpoints=3, tau=2)])
def test_round_tau_averages_only_as_many_clients_as_the_round_before(algorithm):
    """Seven clients train in round τ = 2 and three are averaged, by their samples. The mean is plain NumPy's."""
    seen = {}

    class Seen(type(algorithm)):
        def upload(self, client, server):
            upload = super().upload(client, server)
            counts = bool(upload.sends["vector"].any())
            seen[client.id] = (counts, upload.values["vector"].double().numpy(), client.num_samples, upload.bytes)
            return upload

    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Seen(endpoints=3, tau=2), participation=0.4)
    loop.round()
    seen.clear()
    assert len(loop.round().cohort) == len(seen) == 7
    averaged = {client: row for client, row in seen.items() if row[0]}
    assert len(averaged) == 3
    size = loop.server.layout.num_parameters
    samples = sum(row[2] for row in averaged.values())
    mean = sum(row[1][:size] * row[2] for row in averaged.values()) / samples
    assert loop.server.theta.numpy() == pytest.approx(mean, abs=1e-6)
    everybody = sum(row[1][:size] * row[2] for row in seen.values()) / sum(row[2] for row in seen.values())
    assert not np.allclose(mean, everybody, atol=1e-4)
    endpoints = 4 * 3 * 3 * 8  # the others send their endpoints only
    assert loop.history.up_bytes == 6 * 4 * (48 + 8 + 16 + 16 + 3 + 72) + 4 * endpoints


def test_centers_come_from_the_endpoints_after_training():
    """Round 1 is τ: the centers are those of the endpoints that the clients uploaded, in the order of their ids."""
    sent = {}

    class Seen(Floco):
        def upload(self, client, server):
            sent[client.id] = client.layout.views(client.vector.clone())["net.head.endpoints"].flatten().double()
            return super().upload(client, server)

    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Seen(endpoints=2, tau=1))
    loop.round()
    vectors = torch.stack([sent[c] for c in range(7)])
    expected = centers(vectors @ vectors.T, 2)
    for client in range(7):
        assert opened(loop, client).task.net.head.center.tolist() == pytest.approx(expected[client].tolist(), abs=1e-5)


def test_bytes():
    """Toy: body 6·8 + 8 + 16 parameters and 16 statistics, bias 3, endpoints M·3·8; after τ also M numbers down."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Floco(endpoints=3, tau=1))
    model = 4 * (48 + 8 + 16 + 16 + 3 + 72)
    loop.round()
    assert (loop.history.up_bytes, loop.history.down_bytes) == (7 * model, 7 * model)
    loop.round()
    assert (loop.history.up_bytes, loop.history.down_bytes) == (14 * model, 14 * model + 7 * 12)


def test_the_own_model_of_floco_plus_has_the_region_too():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FlocoPlus(endpoints=3, tau=1, rho=0.2))
    loop.round()
    client = opened(loop, 0)
    center, received = client.task.net.head.center.clone(), loop.algorithm.received(client, loop.server)
    assert center.tolist() != pytest.approx([1 / 3] * 3)
    assert torch.equal(client.layout.views(received)["net.head.center"], center)
    assert float(client.layout.views(received)["net.head.radius"]) == pytest.approx(0.2)
    assert torch.equal(received[: client.layout.num_parameters], loop.server.theta)
    assert not torch.equal(client.theta, loop.server.theta)  # what is tested is the own model


def test_the_global_model_of_floco_plus_is_flocos():
    settings = {"endpoints": 2, "tau": 2}
    one, other = (toy_summary(1, a, rounds=4) for a in (FlocoPlus(**settings), Floco(**settings)))
    assert one["model_sha256"] == other["model_sha256"]
    assert one["clients_sha256"] != other["clients_sha256"]


def test_the_pull_of_floco_plus_by_hand():
    """One step from v: v − 0.1 (∇f(v) + λ(v − w)); the authors' λv − w would differ for λ ≠ 1."""
    algorithm = FlocoPlus(endpoints=1, tau=9, lam=2.5)
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, batch_size=100, local_epochs=1)
    loop.engine.client.task.net.body[3].p = 0.0
    loop.round()
    client = opened(loop, 3)
    own = client.vector.clone()
    client.task.train()
    client.compute_gradient(next(client.batches("0")))
    expected = own[: len(client.grad)] - 0.1 * (client.grad + 2.5 * (own[: len(client.grad)] - loop.server.theta))
    client = opened(loop, 3)
    algorithm.fit(client, loop.server)
    assert torch.allclose(client.theta, expected, atol=1e-6)


def test_bad_settings_are_refused():
    for key, value in (("endpoints", 0), ("tau", 0), ("rho", -1)):
        with pytest.raises(ConfigError, match=rf"{key}: {value} is not allowed"):
            Floco(**{key: value})
    with pytest.raises(ConfigError, match=r"lam: -1 is not allowed"):
        FlocoPlus(lam=-1)
    with pytest.raises(ConfigError, match=r"task: Floco works on classes"):
        ScalarClients(Floco(), targets=[1], sizes=[1], steps=1)
