"""FedOBP against numbers worked by hand and a plain NumPy federation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedAvg, FedOBP
from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.tasks import Classification
from tests.helpers.ranks import run_on_ranks
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop, toy_summary
from tests.helpers.visits import memory_of, open_client

CONTRACT = [
    FedOBP(quantile=0.8),
    FedOBP(quantile=0.5, normalization="layer", scope="classifier", first_visit="initial", bn_buffers="local"),
    FedOBP(quantile=0.8, score="fisher", ema=0.5, first_visit="initial"),
]
LIKE_FEDAVG = [FedOBP(quantile=1.0), FedOBP(quantile=1.0, score="gradient", first_visit="initial")]

TARGETS = [[4.0, -2.0, 1.0, 0.5, 3.0], [-1.0, 5.0, 2.0, -3.0, 0.1], [2.0, 0.3, -6.0, 1.5, -2.5]]
SIZES = [1, 3, 4]


def model_of(run: ScalarClients, client: int) -> torch.Tensor:
    """The model a client would be tested with now."""
    open_client(run.loop, client)
    run.loop.algorithm.personalize(run.loop.engine.client, run.loop.server)
    return run.loop.engine.client.vector.clone()


def numpy_federation(cohorts, quantile, initial=False, ema=0.0, legacy=False, lr=0.1, steps=2):
    """FedOBP in NumPy: sort, cut, merge, gradient steps on ½‖x − a‖², weighted mean. Yields after each round
    the global model and the models of all three clients.
    """
    targets, sizes = np.array(TARGETS), np.array(SIZES, dtype=float)
    d = targets.shape[1]
    server = np.zeros(d)
    own = [np.zeros(d) if initial else None for _ in sizes]
    averages = [None for _ in sizes]

    def start(i):
        if own[i] is None:
            return server.copy(), None
        score = np.abs((own[i] - server) * own[i]) if legacy else (own[i] - server) ** 2
        if averages[i] is not None:
            score = ema * averages[i] + (1 - ema) * score
        threshold = np.sort(score)[int(np.floor(quantile * (d - 1)))]
        return np.where(score > threshold, own[i], server), score

    for cohort in cohorts:
        for i in cohort:
            x, score = start(i)
            averages[i] = score if ema else None
            for _ in range(steps):
                x = x - lr * (x - targets[i])
            own[i] = x
        server = sum(sizes[i] * own[i] for i in cohort) / sizes[cohort].sum()
        yield server.copy(), [start(i)[0] for i in range(3)]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize(
    ("algorithm", "reference"),
    [
        (FedOBP(quantile=0.6), {"quantile": 0.6}),
        (FedOBP(quantile=0.5, first_visit="initial"), {"quantile": 0.5, "initial": True}),
        (FedOBP(quantile=0.6, ema=0.3), {"quantile": 0.6, "ema": 0.3}),
        (FedOBP(quantile=0.3, score="obp_legacy"), {"quantile": 0.3, "legacy": True}),
    ],
)
def test_rounds_with_three_clients_against_numpy(algorithm, reference, participation, world):
    def work(fabric: Fabric):
        run = ScalarClients(algorithm, TARGETS, SIZES, steps=2, participation=participation, fabric=fabric)
        seen = []
        for _ in range(6):
            cohort = run.rounds(1)
            mine = [c for c in range(3) if run.loop.store.home[c] in (-1, fabric.global_rank)]
            seen.append((cohort, run.loop.server.vector.tolist(), {c: model_of(run, c).tolist() for c in mine}))
        return seen

    for seen in run_on_ranks(work, world):
        cohorts = [cohort for cohort, _, _ in seen]
        assert {len(cohort) for cohort in cohorts} == {3 if participation == 1 else 2}
        expected = numpy_federation(cohorts, **reference)
        for (_, server, clients), (server_expected, clients_expected) in zip(seen, expected, strict=True):
            assert server == pytest.approx(server_expected.tolist(), abs=1e-5)
            for client, value in clients.items():
                assert value == pytest.approx(clients_expected[client].tolist(), abs=1e-5)


def test_a_round_by_hand():
    """One step of 0.1 from 0: clients at 0.1a = (0.4, −0.2) and (−0.1, 0.5), n = (1, 3): the mean is (0.025, 0.325).

    Scores of client 0 (0.140625, 0.275625), q = 0.5 of two: threshold the smaller, the second entry stays −0.2.
    Scores of client 1 (0.015625, 0.030625): the second entry stays 0.5.
    """
    run = ScalarClients(FedOBP(quantile=0.5), [[4.0, -2.0], [-1.0, 5.0]], sizes=[1, 3], steps=1)
    run.rounds(1)
    assert run.loop.server.vector.tolist() == pytest.approx([0.025, 0.325], abs=1e-6)
    assert model_of(run, 0).tolist() == pytest.approx([0.025, -0.2], abs=1e-6)
    assert model_of(run, 1).tolist() == pytest.approx([0.025, 0.5], abs=1e-6)


def test_scores_of_training_wait_for_the_next_visit_by_hand():
    """Gradient: |0.1a| = (0.4, 0.2) keeps the first entry of client 0, where Eq. 19 keeps the second.

    Perturbation: g = x − a at the last step's start 0 = −a, θ = 0.1a: |gθ| = 0.1a² = (1.6, 0.4), the first as well.
    Fisher: (x − a)² of the trained model = 0.81a²: the first.
    """
    for score in ("gradient", "perturbation", "fisher", "fisher_batch"):
        run = ScalarClients(FedOBP(quantile=0.5, score=score), [[4.0, -2.0], [-1.0, 5.0]], sizes=[1, 3], steps=1)
        assert model_of(run, 0).tolist() == [0.0, 0.0]
        run.rounds(1)
        assert model_of(run, 0).tolist() == pytest.approx([0.4, 0.325], abs=1e-6), score
        assert model_of(run, 1).tolist() == pytest.approx([0.025, 0.5], abs=1e-6), score


def test_fisher_by_hand():
    """After one step from 0 the gradient is 0.9·(0 − a): its square is 0.81·(16, 4)."""
    run = ScalarClients(FedOBP(score="fisher"), [[4.0, -2.0]], sizes=[3], steps=1)
    run.rounds(1)
    assert memory_of(run.loop, 0)["score"].tolist() == pytest.approx([0.81 * 16, 0.81 * 4], rel=1e-5)


def test_moving_average_by_hand():
    """ema 0.25, scores of training |Δ| = 0.1·|a − x|: S₁ = (0.4, 0.2), then 0.25·S₁ + 0.75·new.

    One client, quantile 1: it starts from its own mean, x = (0.4, −0.2), so new = (0.36, 0.18): S₂ = (0.37, 0.185).
    """
    algorithm = FedOBP(quantile=1.0, score="gradient", ema=0.25)
    run = ScalarClients(algorithm, [[4.0, -2.0]], sizes=[1], steps=1)
    run.rounds(2)
    assert memory_of(run.loop, 0)["score"].tolist() == pytest.approx([0.37, 0.185], abs=1e-6)


def test_first_visit():
    """Client 1 was never drawn. `global`: it starts from the server's model. `initial`: 0 counts as its own model, and
    the server's (0.4, −0.2) differs most in the first entry, which stays 0.
    """
    for first_visit, expected in (("global", [0.4, -0.2]), ("initial", [0.0, -0.2])):
        algorithm = FedOBP(quantile=0.5, first_visit=first_visit)
        run = ScalarClients(algorithm, [[4.0, -2.0], [4.0, -2.0]], sizes=[1, 1], steps=1, participation=0.5)
        (drawn,) = run.rounds(1)
        assert model_of(run, 1 - drawn).tolist() == pytest.approx(expected, abs=1e-6)


def test_fisher_at_the_first_visit_is_that_of_the_initial_model():
    """`initial` at 0, a = (4, −2): (0 − a)² is largest in the first entry, which stays 0. Gradient has no score yet."""
    for score, expected in (("fisher", [0.0, -0.2]), ("gradient", [0.4, -0.2]), ("perturbation", [0.4, -0.2])):
        algorithm = FedOBP(quantile=0.5, first_visit="initial", score=score)
        run = ScalarClients(algorithm, [[4.0, -2.0], [4.0, -2.0]], sizes=[1, 1], steps=1, participation=0.5)
        (drawn,) = run.rounds(1)
        assert model_of(run, 1 - drawn).tolist() == pytest.approx(expected, abs=1e-6), score


def test_no_gradient_of_another_client_is_scored():
    algorithm = FedOBP(quantile=0.5, score="perturbation")
    run = ScalarClients(algorithm, [[4.0, -2.0]], sizes=[1], steps=0, start=[1.0, 1.0])
    run.loop.engine.client.grad.fill_(7.0)
    run.rounds(1)
    assert memory_of(run.loop, 0)["score"].tolist() == [0.0, 0.0]


def personal_entries(**settings) -> torch.Tensor:
    """Client 3's mask after four rounds of the toy."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedOBP(**settings), rounds=4)
    loop.fit()
    open_client(loop, 3)
    loop.algorithm.download(loop.engine.client, loop.server)
    return loop.engine.client.mask.clone()


def test_the_classifier_scope_selects_inside_the_head_only():
    """P = 6·8 + 8 + 8 + 8 + 8·3 + 3 = 99, head the last 27: 27 − 1 − ⌊0.5·26⌋ = 13 personal; of all 99: 49."""
    mask = personal_entries(quantile=0.5, scope="classifier")
    assert int(mask.sum()) == int(mask[72:99].sum()) == 13
    whole = personal_entries(quantile=0.5)
    assert int(whole.sum()) == 49
    assert whole[:72].any()


def test_global_normalization_never_changes_a_run_but_layer_does():
    settings = {"rounds": 6, "participation": 0.6}
    none, whole, layer = (
        toy_summary(1, FedOBP(quantile=0.8, normalization=kind), **settings) for kind in ("none", "global", "layer")
    )
    assert none["clients_sha256"] == whole["clients_sha256"]
    assert none["model_sha256"] == whole["model_sha256"]
    assert none["model_sha256"] != layer["model_sha256"]


def test_layer_normalization_by_hand():
    """Scores (1, 2, 9) and zeros in one tensor, (100, 101, 100) in another, three to choose: without scaling those of
    the second. Scaled per tensor to (0.11, 0.22, 1) and (0, 1, 0), the first has two and the second one.
    """
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedAvg())
    spans = loop.engine.client.layout.parameter_spans
    open_client(loop, 0)
    first, second = spans[0], spans[-1]
    own = torch.zeros(loop.engine.client.layout.num_parameters)
    own[first.start : first.start + 3] = torch.tensor([1.0, 2.0, 9.0]).sqrt()
    own[second.start : second.stop] = torch.tensor([100.0, 101.0, 100.0]).sqrt()
    loop.engine.client.memory["theta"] = own
    loop.server.vector.zero_()
    expected = {"none": [1, 1, 1], "global": [1, 1, 1], "layer": [0, 1, 0]}
    for kind, head in expected.items():
        algorithm = FedOBP(quantile=0.975, normalization=kind)  # 99 − 1 − ⌊0.975·98⌋ = 3
        algorithm.download(loop.engine.client, loop.server)
        assert loop.engine.client.mask[second.start : second.stop].tolist() == [bool(x) for x in head]
        assert bool(loop.engine.client.mask[first.start + 2]) == (kind == "layer")


@pytest.mark.parametrize("scope", ["all", "classifier"])
def test_personal_entries_keep_their_own_values_and_everything_is_averaged(scope):
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedOBP(quantile=0.7, scope=scope), rounds=3)
    loop.fit()
    open_client(loop, 2)
    own = loop.engine.client.memory["theta"].clone()
    loop.algorithm.download(loop.engine.client, loop.server)
    mask = loop.engine.client.mask[:99]
    assert mask.any()
    assert torch.equal(loop.engine.client.theta[mask], own[mask])
    assert torch.equal(loop.engine.client.theta[~mask], loop.server.theta[~mask])
    assert loop.algorithm.exchange(loop.engine.client).sent_entries() is None
    per_client = 4 * loop.server.layout.size
    assert loop.history.up_bytes == loop.history.down_bytes == 3 * 7 * per_client


class Blank(FederatedData):
    """Two clients with a handful of black images of a data set's shape."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(2)
        self.spec = spec

    def load(self) -> Samples:
        return Samples(torch.zeros(8, *self.spec.shape), torch.zeros(8, dtype=torch.int64), 0)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        return Parts(np.arange(8), np.array([2, 2]), np.array([2, 2]))


TABLE_5 = [
    (DataSpec((3, 32, 32), 10), {0.99998: 18, 0.99979: 185, 0.99997: 27, 0.9998: 176}),  # CIFAR-10, SVHN
    (DataSpec((3, 32, 32), 100), {0.9998: 185, 0.99992: 74}),
    (DataSpec((1, 28, 28), 62), {0.995: 3044, 0.9991: 548}),
    (DataSpec((1, 28, 28), 10), {0.9998: 117, 0.99993: 41, 0.9999: 59}),  # MNIST, FMNIST
    (DataSpec((1, 28, 28), 11), {0.99995: 30, 0.9997: 175, 0.9999: 59}),  # 0.9999: the paper prints 53
]


@pytest.mark.parametrize(("spec", "counts"), TABLE_5, ids=lambda value: str(value))
def test_the_counts_of_table_5_through_a_real_client(spec, counts):
    data = Blank(spec)
    data.setup(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    loop = FederatedFabricLoop(fabric, Classification(), FedOBP(), data, LoopConfig(rounds=1, eval_every=0))
    d = loop.engine.client.layout.num_parameters
    own = torch.randperm(d, generator=torch.Generator().manual_seed(0)).float() + 1  # squares of these are distinct
    for quantile, count in counts.items():
        loop.algorithm = FedOBP(quantile=quantile)
        loop.server.vector.zero_()
        open_client(loop, 0)
        loop.engine.client.memory["theta"] = own
        loop.algorithm.download(loop.engine.client, loop.server)
        assert int(loop.engine.client.mask.sum()) == count
        assert sorted(loop.engine.client.theta[loop.engine.client.mask].tolist()) == list(range(d - count + 1, d + 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantile": 1.5}, r"quantile: 1.5 is not allowed; use a number from 0 to 1"),
        ({"ema": 1.0}, r"ema: 1.0 is not allowed; use a number from 0 up to, not including, 1"),
        ({"score": "taylor"}, r"score: 'taylor' is not allowed; use obp \| obp_legacy \| gradient \| fisher"),
        ({"scope": "body"}, r"scope: 'body' is not allowed; use all \| classifier"),
        ({"normalization": "l2"}, r"normalization: 'l2' is not allowed; use none \| layer \| global"),
        ({"first_visit": "own"}, r"first_visit: 'own' is not allowed; use global \| initial"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedOBP(**settings)


def test_a_state_has_no_mask_because_the_next_visit_makes_a_new_one():
    loop = toy_loop(
        Fabric(accelerator="cpu", devices=1), FedOBP(quantile=0.5), rounds=3, participation=1.0, eval_every=0
    )
    loop.fit()
    open_client(loop, 0)
    assert loop.engine.client.visits == 3
    assert not loop.engine.client.mask[: loop.server.layout.num_parameters].any()
