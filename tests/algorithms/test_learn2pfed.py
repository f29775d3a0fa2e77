"""Learn2pFed against a NumPy ADMM, finite differences, and what its paper shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import SGD, Adam

from pfl_lightning.algorithms import FedAvg, Learn2pFed, Local
from pfl_lightning.algorithms.learn2pfed import SETTINGS, safe_step
from pfl_lightning.algorithms.parts.admm_cell import CrossEntropy, Variables
from pfl_lightning.algorithms.parts.least_squares import LeastSquares, solve_together
from pfl_lightning.algorithms.parts.unrolled import Participant, backward, gather_settings, learn, unroll
from pfl_lightning.data import DataSpec, Polynomial
from pfl_lightning.engine.cohort import draw_cohort
from pfl_lightning.foundation.errors import ConfigError, DivergedError
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.model.client import ClientModule
from pfl_lightning.nets import MLP, LeNet, Powers, SmallCNN
from pfl_lightning.report.client_memory import memory_table
from pfl_lightning.tasks import Classification, Regression
from tests.helpers.plain_admm import plain_admm, plain_loss
from tests.helpers.ranks import run_on_ranks
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop
from tests.helpers.uploads import uploads_of
from tests.helpers.visits import open_client

CONTRACT = [
    Learn2pFed(cells=3, warm_start=True),
    Learn2pFed(cells=2, warm_start=True, learn_share=0.3),
    Learn2pFed(cells=2, tie_cells=True, learnable=("Lambda", "p"), start_layer="body.0", weighting="samples"),
]

CELLS, FEATURES = 4, 3
SHARES = {1: [[0, 1, 2]], 2: [[2, 0], [1]], 3: [[1], [], [0, 2]]}


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def make_settings(seed: int = 7, size: int = FEATURES) -> dict[str, np.ndarray]:
    """Settings of three clients; one Lambda is negative and counts as 0."""
    rng = np.random.default_rng(seed)
    settings = {name: rng.uniform(0.3, 1.5, (3, CELLS)) for name in SETTINGS}
    settings["Lambda"] = rng.uniform(0.1, 2.0, (3, CELLS, size))
    settings["Lambda"][1, :, 0] = -0.5
    return settings


X = [numbers(10 + i, 6 + i, FEATURES) for i in range(3)]
Y = [numbers(20 + i, 6 + i) for i in range(3)]
START = [numbers(30, 3, FEATURES), numbers(31, 3, FEATURES), numbers(32, 3, FEATURES), numbers(33, FEATURES)]


def make_participants(settings: dict[str, np.ndarray], clients: list[int], kind: str) -> list[Participant]:
    participants = []
    for i in clients:
        values = {name: torch.tensor(value[i]).view(CELLS, -1) for name, value in settings.items()}
        values |= {
            f"{name} moments": torch.zeros(2, *value.shape, dtype=torch.float64) for name, value in values.items()
        }
        if kind == "regression":
            problem: Any = LeastSquares(torch.tensor(X[i]), torch.tensor(Y[i])[:, None], bias=False)
            start = Variables(*(torch.tensor(part[i]) for part in START[:3]), torch.tensor(START[3]))
        else:
            problem = CrossEntropy(torch.tensor(X[i]), torch.arange(len(X[i])) % 2, outputs=2, lr=0.3)
            start = Variables(*torch.tensor(numbers(40 + i, 3, 8)), torch.tensor(numbers(44, 8)))
        participants.append(Participant(values, 1 / 3, problem, start, visits=1))
    return participants


def run_cells(fabric: Fabric, settings: dict[str, np.ndarray], kind: str) -> dict[int, dict[str, torch.Tensor]]:
    """Where each client of this rank ends, its loss and the gradients of its settings."""
    shares = SHARES[fabric.world_size]
    mine = shares[fabric.global_rank]
    participants = make_participants(settings, mine, kind)
    size = settings["Lambda"].shape[2]
    initial = {name: torch.ones(CELLS, size if name == "Lambda" else 1, dtype=torch.float64) for name in SETTINGS}
    stacked = gather_settings(participants, initial, SETTINGS)
    uploads = uploads_of(fabric, shares)
    end = unroll(participants, stacked, CELLS, uploads, torch.zeros(size, dtype=torch.float64))
    backward([each.problem for each in participants], end)
    return {
        client: {name: value[i].detach() for name, value in end._asdict().items()}
        | {name: value.grad[i] for name, value in stacked.items()}
        | {"loss": participants[i].problem.loss(end.v[i]).detach()}
        for i, client in enumerate(mine)
    }


def on_one_rank(settings: dict[str, np.ndarray], kind: str) -> dict[int, dict[str, torch.Tensor]]:
    return run_cells(Fabric(accelerator="cpu", devices=1), settings, kind)


def test_cells_are_admm():
    settings = make_settings()
    ends = on_one_rank(settings, "regression")
    v, z, alpha, w = plain_admm(X, Y, START, settings, CELLS)
    for i in range(3):
        for name, value in {"v": v[i], "z": z[i], "alpha": alpha[i], "w": w}.items():
            assert ends[i][name].numpy() == pytest.approx(value, rel=1e-10), name


def test_a_layer_with_bias_and_two_outputs_is_solved_for_each_output():
    x, y, target, rho = numbers(1, 9, 3), numbers(2, 9, 2), numbers(3, 8), 0.75
    ones = np.hstack([x, np.ones((9, 1))])
    problem = LeastSquares(torch.tensor(ones), torch.tensor(y), bias=True)
    v = problem.update(torch.zeros(8, dtype=torch.float64), torch.tensor(target), torch.tensor([rho]).double())
    for output in range(2):
        towards = np.append(target[3 * output : 3 * output + 3], target[6 + output])
        solved = np.linalg.solve(ones.T @ ones + rho * np.eye(4), rho * towards + ones.T @ y[:, output])
        assert v[3 * output : 3 * output + 3].numpy() == pytest.approx(solved[:3], rel=1e-10)
        assert float(v[6 + output]) == pytest.approx(solved[3], rel=1e-10)
    layer = nn.Linear(3, 2).double()
    layer.weight.data, layer.bias.data = v[:6].view(2, 3), v[6:]
    squares = (layer(torch.tensor(x)).detach() - torch.tensor(y)).square()
    assert float(problem.loss(v)) == pytest.approx(float(squares.mean()))


def test_clients_solved_together_have_the_bits_of_each_alone_and_the_derivatives_of_a_plain_solve():
    problems = [LeastSquares(torch.tensor(X[i]), torch.tensor(Y[i])[:, None], bias=False) for i in range(3)]
    target, rho = torch.tensor(numbers(50, 3, FEATURES)), torch.tensor([[0.3], [0.7], [1.1]]).double()
    pull = torch.tensor(numbers(51, 3, FEATURES))
    together = [each.clone().requires_grad_() for each in (target, rho)]
    v = solve_together(problems)(target, *together)
    (v * pull).sum().backward()
    for i, problem in enumerate(problems):
        alone = [each[i].clone().requires_grad_() for each in (target, rho)]
        one = problem.update(target[i], *alone)
        (one * pull[i]).sum().backward()
        assert torch.equal(one, v[i])
        assert all(torch.equal(a.grad, b.grad[i]) for a, b in zip(alone, together, strict=True))
        plain = [each[i].clone().requires_grad_() for each in (target, rho)]
        system = problem.gram + plain[1] * torch.eye(FEATURES)
        (torch.linalg.solve(system, plain[1] * plain[0] + problem.moment[:, 0]) * pull[i]).sum().backward()
        assert all(torch.allclose(a.grad, b.grad, rtol=1e-10) for a, b in zip(alone, plain, strict=True))


def test_a_step_of_classification_by_hand():
    """Two classes, v = 0, one sample x = (1, 2) of class 0: ∇F = (p − e_0) xᵀ with p = (½, ½). target = 1, ρ = 2."""
    problem = CrossEntropy(torch.tensor([[1.0, 2.0]]), torch.tensor([0]), outputs=2, lr=0.1)
    v = problem.update(torch.zeros(6), torch.ones(6), torch.tensor([2.0]))
    gradient = torch.tensor([-0.5, -1.0, 0.5, 1.0, -0.5, 0.5])  # weights of class 0, of class 1, biases
    assert torch.allclose(v, -0.1 * (gradient - 2.0))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_the_default_step_of_classification_lowers_the_loss_at_every_step(size, bias):
    """Its objective in NumPy: mean cross-entropy + ρ/2 ‖v − target‖². The old default, 0.1, raises it for large x."""
    rng, rho = np.random.default_rng(0), 0.7
    x, y, target = size * rng.normal(size=(20, 4)), np.arange(20) % 3, rng.normal(size=3 * (4 + bias))

    def objective(v: torch.Tensor) -> float:
        weight, offset = v.numpy()[:12].reshape(3, 4), v.numpy()[12:] if bias else 0.0
        logits = x @ weight.T + offset
        loss = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - logits[np.arange(20), y]
        return float(loss.mean() + rho / 2 * np.square(v.numpy() - target).sum())

    def after(lr: float | torch.Tensor) -> list[float]:
        problem, v = CrossEntropy(torch.tensor(x), torch.tensor(y), 3, lr), torch.zeros(len(target)).double()
        values = [objective(v)]
        for _ in range(10):
            v = problem.update(v, torch.tensor(target), torch.tensor([rho]))
            values.append(objective(v))
        return values

    found = after(safe_step(torch.tensor(x), bias, rho))
    assert found == sorted(found, reverse=True)
    assert (after(0.1)[1] > found[0]) == (size == 100.0)


@pytest.mark.parametrize("inner_lr", [None, 0.3])
def test_each_client_has_a_step_of_its_own_unless_one_is_given(inner_lr):
    algorithm = Learn2pFed(inner_lr=inner_lr, initial_rho=0.5)
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, rounds=1)
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])  # squares 25 and 1, mean 13, and 1 for the bias
    problem = algorithm.problem(loop.engine.client, x, torch.tensor([0, 1]))
    assert float(problem.lr) == pytest.approx(inner_lr or 1 / (14 / 2 + 0.5))
    assert float(safe_step(x[:0], True, 0.5)) == pytest.approx(1.0), "a client without samples"


@pytest.mark.parametrize(("kind", "size"), [("regression", FEATURES), ("classification", 8)])
def test_gradients_are_those_of_finite_differences(kind, size):
    settings = make_settings(size=size)
    gradients = on_one_rank(settings, kind)

    def total(changed: dict[str, np.ndarray]) -> float:
        if kind == "regression":
            return plain_loss(X, Y, plain_admm(X, Y, START, changed, CELLS)[0])
        participants = make_participants(changed, [0, 1, 2], kind)
        stacked = {name: torch.stack([each.values[name] for each in participants]) for name in SETTINGS}
        uploads = uploads_of(Fabric(accelerator="cpu", devices=1), SHARES[1])
        end = unroll(participants, stacked, CELLS, uploads, torch.zeros(size).double())
        return sum(float(each.problem.loss(v)) for each, v in zip(participants, end.v, strict=True))

    step = 1e-5
    for name in SETTINGS:
        for client, cell in ((0, 0), (1, 1), (2, CELLS - 1)):
            place = (client, cell, size - 1) if name == "Lambda" else (client, cell)
            sides = []
            for sign in (1, -1):
                changed = {key: value.copy() for key, value in settings.items()}
                changed[name][place] += sign * step
                sides.append(total(changed))
            found = gradients[client][name][cell, place[2] if name == "Lambda" else 0]
            assert float(found) == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-4, abs=1e-8), (name, place)
    assert (gradients[1]["Lambda"][:, 0] == 0).all()  # where ReLU is flat


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_ends_and_gradients_are_the_same_on_1_2_and_3_ranks(kind):
    """Bit for bit, one of three ranks having no client."""
    settings = make_settings(size=FEATURES if kind == "regression" else 8)
    one = on_one_rank(settings, kind)
    for world in (2, 3):
        answers = run_on_ranks(lambda fabric: run_cells(fabric, settings, kind), world)
        together = {client: end for answer in answers for client, end in answer.items()}
        for client, end in one.items():
            assert all(torch.equal(together[client][name], value) for name, value in end.items())


def test_settings_are_learned_by_adam():
    """Three visits with given gradients, against torch's Adam."""
    values, gradients = torch.tensor(numbers(1, 2, 1, 4)), torch.tensor(numbers(2, 3, 2, 1, 4))
    reference = values.clone().requires_grad_()
    adam = Adam([reference], lr=0.05, eps=1e-3)
    start = Variables(*torch.zeros(4, 4, dtype=torch.float64))
    moments = torch.zeros(2, 2, 1, 4, dtype=torch.float64)
    for visit, gradient in enumerate(gradients, start=1):
        reference.grad = gradient.clone()
        adam.step()
        participants = [
            Participant({"Lambda moments": moments[i]}, 0.5, problem=None, start=start, visits=visit)  # type: ignore[arg-type]
            for i in range(2)
        ]
        leaf = values.clone().requires_grad_()
        leaf.grad = gradient
        news = learn(participants, {"Lambda": leaf}, ["Lambda"], 0.05, 1e-3)
        values, moments = news["Lambda"], news["Lambda moments"]
        assert torch.allclose(values, reference.detach(), rtol=1e-12)


def test_where_settings_start():
    """ρ, η and γ, then θ and Λ have initial values of their own. The weight p starts at 1. Moments start at zero."""
    algorithm = Learn2pFed(cells=2, initial_lambda=0.7, initial_rho=0.3, initial_theta=0.5, warm_start=True)
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm)
    memory = open_client(loop, 0).memory
    expected = {"Lambda": 0.7, "rho": 0.3, "eta": 0.3, "gamma": 0.3, "theta": 0.5, "p": 1.0}
    for name, value in expected.items():
        assert torch.equal(memory[name], torch.full((2, 27 if name == "Lambda" else 1), value, dtype=torch.float64))
        assert not memory[f"{name} moments"].any()


def test_steps_stay_positive():
    leaf = torch.full((1, 1, 1), 0.002, dtype=torch.float64, requires_grad=True)
    leaf.grad = torch.ones_like(leaf)
    moments = {"rho moments": torch.zeros(2, 1, 1)}
    participant = Participant(moments, 1.0, problem=None, start=None, visits=1)  # type: ignore[arg-type]
    assert float(learn([participant], {"rho": leaf}, ["rho"], 0.1, 1e-8)["rho"]) == 1e-3


def poly_loop(fabric: Fabric, algorithm: Any, rounds: int, lr: float = 0.01, **settings: Any) -> FederatedFabricLoop:
    loop_keys = ("participation", "local_epochs", "eval_every")
    config = {"eval_every": 0, "batch_size": 64, **{k: settings.pop(k) for k in loop_keys if k in settings}}
    data = Polynomial(**settings)
    data.setup(0)
    return FederatedFabricLoop(
        fabric, Regression(Powers, lambda p: Adam(p, lr=lr)), algorithm, data, LoopConfig(rounds, **config)
    )


def client_data(data: Polynomial, client: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = data.batch(data.train_indices(client), torch.device("cpu"))
    powers = torch.cat([torch.ones_like(x), x, x * x, x * x * x], 1)
    return powers.double().numpy(), y.double().numpy()[:, 0]


def two_rounds(fabric: Fabric) -> tuple[list[list[float]], list[float]]:
    """The model each client is tested with after two rounds of two clients out of three, and the server's."""
    algorithm = Learn2pFed(cells=3, learnable=("Lambda",), lr=0.1, initial_rho=0.5)
    loop = poly_loop(fabric, algorithm, 2, num_clients=3, points=60, participation=0.6)
    loop.fit()
    models = torch.zeros(3, 4, dtype=torch.float64)
    for client, home in enumerate(loop.store.home):
        if max(home, 0) == loop.comm.rank:
            open_client(loop, client)
            algorithm.personalize(loop.engine.client, loop.server)
            models[client] = loop.engine.client.vector.double()
    return loop.comm.merge_table(models).tolist(), loop.server.vector.tolist()


@pytest.mark.parametrize("world", [1, 2])
def test_two_rounds_of_two_clients_by_numpy(world):
    """Adam's first step is lr · g / (|g| + ε) downwards; who is drawn twice takes its second round with the new Λ."""
    models, server = run_on_ranks(two_rounds, world)[0]
    loop = poly_loop(Fabric(accelerator="cpu", devices=1), Learn2pFed(), 1, num_clients=3, points=60)
    w = loop.server.initial.double().numpy()
    expected: dict[int, np.ndarray] = {}
    lambdas = np.ones((3, 3, 4))
    for round_ in (1, 2):
        cohort = draw_cohort(0, round_, 3, 0.6)
        x, y = zip(*(client_data(loop.data, c) for c in cohort), strict=True)  # type: ignore[arg-type]
        zeros = np.zeros((2, 4))
        start = [np.tile(w, (2, 1)), zeros, zeros, w]

        def settings(at: np.ndarray) -> dict[str, np.ndarray]:
            return dict.fromkeys(SETTINGS, np.full((2, 3), 0.5)) | {
                "theta": np.ones((2, 3)), "p": np.ones((2, 3)), "Lambda": at,
            }  # fmt: skip

        at = lambdas[cohort]
        v, _, _, end = plain_admm(x, y, start, settings(at), 3)
        if round_ == 1:
            for place in np.ndindex(at.shape):
                losses = []
                for sign in (1, -1):
                    moved = at.copy()
                    moved[place] += sign * 1e-5
                    losses.append(plain_loss(x, y, plain_admm(x, y, start, settings(moved), 3)[0]))
                gradient = (losses[0] - losses[1]) / 2e-5
                if place[1] < 2:  # no gradient reaches the last cell's
                    lambdas[cohort[place[0]], *place[1:]] -= 0.1 * np.sign(gradient)
        expected |= {client: v[i] for i, client in enumerate(cohort)}
    for client in range(3):
        model = expected.get(client, end)  # who was never drawn has the server's
        assert models[client] == pytest.approx(model, rel=1e-5, abs=1e-5)
    assert server == pytest.approx(end, rel=1e-5, abs=1e-5)


def test_settings_can_be_learned_on_samples_that_the_cells_do_not_see():
    """The models come from all samples. Λ takes its first step down the held-out loss of cells with the other half."""
    algorithm = Learn2pFed(cells=3, learnable=("Lambda",), lr=0.1, learn_share=0.5)
    loop = poly_loop(Fabric(accelerator="cpu", devices=1), algorithm, 1, num_clients=2, points=40)
    loop.fit()
    w = loop.server.initial.double().numpy()
    data = [client_data(loop.data, client) for client in range(2)]  # type: ignore[arg-type]
    orders = [
        torch.randperm(16, generator=torch.Generator().manual_seed(derive_seed(0, "learn", 1, client))).numpy()
        for client in range(2)
    ]
    held, seen = ([(x[o[part]], y[o[part]]) for (x, y), o in zip(data, orders, strict=True)]
                  for part in (slice(8), slice(8, 16)))  # fmt: skip
    start = [np.tile(w, (2, 1)), np.zeros((2, 4)), np.zeros((2, 4)), w]

    def models(parts: list[tuple[np.ndarray, np.ndarray]], at: np.ndarray) -> np.ndarray:
        settings = dict.fromkeys(SETTINGS, np.ones((2, 3))) | {"Lambda": at}
        return plain_admm(*zip(*parts, strict=True), start, settings, 3)[0]

    ones = np.ones((2, 3, 4))
    for client in range(2):
        memory = open_client(loop, client).memory
        assert memory["v"].numpy() == pytest.approx(models(data, ones)[client], rel=1e-6)
        for cell, entry in np.ndindex(2, 4):  # no gradient reaches the last cell's
            sides = []
            for sign in (1, -1):
                moved = ones.copy()
                moved[client, cell, entry] += sign * 1e-4
                sides.append(plain_loss(*zip(*held, strict=True), models(seen, moved)))
            step = float(memory["Lambda"][cell, entry]) - 1
            assert step == pytest.approx(-0.1 * np.sign(sides[0] - sides[1]), rel=1e-3), (client, cell, entry)
    assert (loop.history.up_bytes, loop.history.down_bytes) == (2 * 8 * 4 * 8, 2 * 8 * 4 * 6)


@pytest.mark.parametrize(("share", "held"), [(0.01, 1), (0.3, 1), (0.5, 2), (0.9, 3)])
def test_a_split_has_its_share_of_the_samples_and_at_least_one_on_each_side(share, held):
    """Client 2 of the toy data has four samples. The split is the same whenever it is made in a round."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Learn2pFed(warm_start=True, learn_share=share))
    client = open_client(loop, 2)
    x, y = torch.arange(12.0).view(4, 3), torch.arange(4)
    parts = [loop.algorithm.split(client, x, y) for _ in range(2)]
    assert [[len(problem.y) for problem in part] for part in parts] == [[4 - held, held]] * 2
    assert sorted(torch.cat([problem.y for problem in parts[0]]).tolist()) == [0, 1, 2, 3]
    assert all(torch.equal(one.x, other.x) for one, other in zip(*parts, strict=True))


def test_regression_logs_its_loss_without_a_pass_over_batches(monkeypatch):
    loop = poly_loop(Fabric(accelerator="cpu", devices=1), Learn2pFed(cells=2), 1, num_clients=2, points=40)
    monkeypatch.setattr(ClientModule, "batches", lambda *_, **__: pytest.fail("a pass over batches"))
    w = loop.server.initial.double().numpy()
    record = loop.round()
    squares = [(x @ w - y) ** 2 for x, y in (client_data(loop.data, client) for client in range(2))]  # type: ignore[arg-type]
    assert record.scalars["train_loss"] == pytest.approx(np.concatenate(squares).mean(), rel=1e-5)


def test_a_warm_start_goes_on_where_the_last_round_ended():
    """Two rounds of three cells are one of six; without it they are three cells twice."""
    fabric, models = Fabric(accelerator="cpu", devices=1), []
    for rounds, cells, warm in ((2, 3, True), (1, 6, True), (2, 3, False), (1, 3, False)):
        algorithm = Learn2pFed(cells=cells, learnable=(), warm_start=warm)
        loop = poly_loop(fabric, algorithm, rounds, num_clients=3, points=60)
        loop.fit()
        models.append(torch.stack([loop.store.states[c]["memory/v"] for c in range(3)]))
    assert torch.allclose(models[0], models[1], rtol=1e-5, atol=1e-6)
    assert torch.equal(models[2], models[3])
    assert not torch.allclose(models[0], models[2], rtol=1e-2)


def errors(loop: FederatedFabricLoop) -> float:
    table = loop.evaluate()[:, 0].numpy()  # the model each client would start from
    return float(np.sqrt(table[:, 0] / table[:, 1]).mean())


@pytest.mark.parametrize("setting", [1, 2, 3])
def test_it_beats_one_global_model_but_not_its_own_control_without_exchange(setting):
    """With Λ = 0, not learned, clients exchange nothing. On the polynomials that does about as well."""
    learned = Learn2pFed(tie_cells=True, lr=0.03, adam_eps=1e-3)
    steps = ("rho", "eta", "gamma", "theta", "p")
    control = Learn2pFed(tie_cells=True, lr=0.03, adam_eps=1e-3, initial_lambda=0.0, learnable=steps)
    loops = [poly_loop(Fabric(accelerator="cpu", devices=1), each, 60, setting=setting) for each in (learned, control)]
    for loop in loops:
        loop.fit()
    data = [client_data(loops[0].data, client) for client in range(10)]
    pooled = np.linalg.lstsq(*(np.concatenate(part) for part in zip(*data, strict=True)), rcond=None)[0]
    rmse = 0.0
    for client in range(10):
        x, y = loops[0].data.batch(loops[0].data.test_indices(client), torch.device("cpu"))
        rmse += np.sqrt(np.mean((x.double().numpy() ** np.arange(4) @ pooled - y.numpy()[:, 0]) ** 2)) / 10
    assert errors(loops[0]) < 0.2 * rmse
    assert errors(loops[0]) == pytest.approx(errors(loops[1]), rel=0.3)


def test_in_setting_1_every_client_finds_its_private_coefficient():
    """From points of the whole curve: the private one is held to the server's much less than each shared one."""
    algorithm = Learn2pFed(tie_cells=True, lr=0.1, adam_eps=1e-2)
    loop = poly_loop(Fabric(accelerator="cpu", devices=1), algorithm, 80, setting=1, segments=False)
    loop.fit()
    lambdas = memory_table(loop.store.states.items(), "Lambda", 10)
    assert lambdas is not None
    assert (lambdas[:, 3] < 0.7 * lambdas[:, :3].min(axis=1)).all(), lambdas


def test_only_what_is_learnable_is_learned():
    loop = poly_loop(
        Fabric(accelerator="cpu", devices=1), Learn2pFed(cells=3, learnable=("eta", "p")), 3, num_clients=2, points=40
    )
    loop.fit()
    memory = open_client(loop, 0).memory
    assert {name for name in SETTINGS if name in memory} == {"eta", "p"}
    assert (memory["eta"] != 1).any()
    assert (memory["p"] != 1).any()


def test_bytes_of_a_round():
    """d = 4, three cells, float64. Up 3 rows and 2 gradients; down 2 w and 2 gradients: the first w is known."""
    loop = poly_loop(Fabric(accelerator="cpu", devices=1), Learn2pFed(cells=3), 1, num_clients=2, points=40)
    loop.fit()
    assert (loop.history.up_bytes, loop.history.down_bytes) == (2 * 8 * 4 * 5, 2 * 8 * 4 * 4)


def test_the_extractor_is_trained_by_each_client_and_never_leaves_it():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Learn2pFed(cells=2, warm_start=True), rounds=2)
    loop.fit()
    head = loop.server.memory["head"]
    body = torch.ones(loop.server.layout.size, dtype=torch.bool)
    body[head] = False
    assert torch.equal(loop.server.vector[body], loop.server.initial[body])
    assert not torch.equal(loop.server.vector[head], loop.server.initial[head])
    bodies = [loop.store.states[client]["personal"] for client in range(7)]
    assert len({tuple(b.tolist()) for b in bodies}) == 7
    assert loop.history.up_bytes == 2 * 7 * 8 * len(head) * 3


TABLE_5 = [("head", 61_156, 850), ("body.fc2", 50_992, 1_210), ("body.fc1", 2_872, 4_010)]


@pytest.mark.parametrize(("layer", "extractor", "linear"), TABLE_5)
def test_start_layers_of_table_5(layer, extractor, linear):
    """One linear layer takes the place of the last ones; what is before it are the paper's local parameters."""
    task = Classification(LeNet, lambda p: SGD(p, lr=0.1))
    task.build(DataSpec((3, 32, 32), 10))
    algorithm = Learn2pFed(start_layer=layer)
    algorithm.check(task, None)  # type: ignore[arg-type]
    algorithm.modify_model(task)
    assert sum(p.numel() for p in task.net.body.parameters()) == extractor
    assert sum(p.numel() for p in task.net.head.parameters()) == linear
    assert task(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cells": 0}, r"cells: 0 is not allowed; use a whole number >= 1"),
        ({"initial_rho": 0.0}, r"initial_rho: 0.0 is not allowed; use a number > 0"),
        ({"initial_lambda": -1.0}, r"initial_lambda: -1.0 is not allowed; use a number >= 0"),
        ({"learn_share": 1.0}, r"learn_share: 1.0 is not allowed; use a number from 0 to below 1"),
        ({"lr": 0.0}, r"lr: 0.0 is not allowed; use a number > 0"),
        (
            {"learnable": ("Lambda", "mu")},
            r"learnable: \['Lambda', 'mu'\] is not allowed; use some of Lambda, rho, eta",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Learn2pFed(**settings)


def test_a_start_layer_that_does_not_exist_is_refused():
    message = r"algorithm.start_layer: 'body.fc1' is not allowed; use head"
    task = Classification(SmallCNN)
    task.build(DataSpec((1, 28, 28), 10))
    with pytest.raises(ConfigError, match=message):
        Learn2pFed(start_layer="body.fc1").check(task, None)  # type: ignore[arg-type]


def test_a_task_it_cannot_work_with_is_refused():
    with pytest.raises(ConfigError, match=r"task.head: there is no layer named head"):
        ScalarClients(Learn2pFed(), targets=[1.0], sizes=[1], steps=1)


def test_a_client_that_diverges_ends_the_run():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Learn2pFed(cells=9, inner_lr=1e9, warm_start=True), rounds=9)
    with pytest.raises(DivergedError, match=r"diverged in round"):
        loop.fit()


def test_the_bias_of_the_last_layer_is_solved_with_its_weights():
    """One cell without a pull is the least-squares line, with an intercept, of each client's own points."""
    data = Polynomial(points=60, num_clients=3)
    data.setup(0)
    task = Regression(lambda spec: MLP(spec, ()), lambda p: Adam(p, lr=0.01))
    line = Learn2pFed(cells=1, initial_lambda=0, learnable=(), initial_rho=1e-9)
    loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, line, data, LoopConfig(1, eval_every=0))
    loop.fit()
    for client in range(3):
        x, y = data.batch(data.train_indices(client), torch.device("cpu"))
        open_client(loop, client)
        line.personalize(loop.engine.client, loop.server)
        slope, offset = np.polyfit(x[:, 0].double().numpy(), y[:, 0].double().numpy(), 1)
        assert loop.engine.client.vector.tolist() == pytest.approx([slope, offset], rel=1e-3)


@pytest.mark.parametrize("algorithm", [FedAvg(), Local()])
def test_the_baselines_run_on_the_same_data(algorithm):
    """With the net of the paper's baselines, through the same loop and columns."""
    data = Polynomial(points=100)
    data.setup(0)
    task = Regression(lambda spec: MLP(spec, (8,)), lambda p: Adam(p, lr=0.01))
    loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, algorithm, data, LoopConfig(2, eval_every=1))
    last = loop.fit()["last"]
    assert last["rmse_after"] < last["rmse_before"]
    assert last["all_mse_before"] > 0
