"""FedCAC and FedPURIN in a few lines of NumPy that share no code with the package, and a federation to run them on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.data.federated import DataSpec
from pfl_lightning.engine.evaluation import clients_to_evaluate
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from tests.helpers.ranks import run_on_ranks
from tests.helpers.scalar import Quadratic, Targets
from tests.helpers.visits import open_client

TENSORS = [(0, 5), (5, 9)]
TARGETS = np.random.default_rng(8).normal(size=(3, 9)) * 2
START = np.random.default_rng(9).normal(size=9)
SIZES = [2, 5, 1]
STEPS, LR = 2, 0.1


class TwoTensors(Quadratic):
    """½ ‖(x, y) − a‖² with two parameters, of 5 and 4 entries."""

    def build(self, spec: DataSpec) -> None:
        parts = [torch.tensor(self.start[low:high], dtype=torch.float32) for low, high in TENSORS]
        self.x, self.y = map(nn.Parameter, parts)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int = 0) -> Tensor:
        return 0.5 * (torch.cat([self.x, self.y]) - batch[1]).square().sum(1).mean()

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int = 0) -> Tensor:
        squares = (torch.cat([self.x, self.y]) - batch[1]).square().sum()
        return torch.stack([squares, torch.tensor(float(len(batch[1])))]).double()


def two_tensor_loop(fabric: Fabric, algorithm: Algorithm, participation: float) -> FederatedFabricLoop:
    data = Targets(TARGETS.tolist(), SIZES)
    data.setup(0)
    config = LoopConfig(100, participation, local_epochs=STEPS, batch_size=1000, eval_every=0)
    return FederatedFabricLoop(fabric, TwoTensors(LR, START.tolist()), algorithm, data, config)


def run_rounds(algorithm: Algorithm, rounds: int, participation: float, world: int) -> list[dict[str, Any]]:
    """Each rank's cohorts, global models after each round, and the models its clients would start from."""

    def work(fabric: Fabric) -> dict[str, Any]:
        loop = two_tensor_loop(fabric, algorithm, participation)
        cohorts, servers, starts = [], [], []
        for _ in range(rounds):
            record = loop.round()
            cohorts.append(record.cohort)
            servers.append(loop.server.vector.numpy().copy())
            models = {}
            for _, client in clients_to_evaluate(
                loop.evaluated, loop.store.home, fabric.global_rank, fabric.world_size
            ):
                open_client(loop, client)
                algorithm.personalize(loop.engine.client, loop.server)
                models[client] = loop.engine.client.vector.numpy().copy(), loop.engine.client.mask.numpy().copy()
            starts.append(models)
        return {"cohorts": cohorts, "servers": servers, "starts": starts}

    return run_on_ranks(work, world)


def plain_overlap(a: np.ndarray, b: np.ndarray) -> float:
    if not a.any():
        return 0.0 if b.any() else 1.0
    return 1 - sum(abs(int(x) - int(y)) for x, y in zip(a, b, strict=True)) / (2 * int(a.sum()))


def plain_groups(marks: dict[int, np.ndarray], t: int, beta: int) -> dict[int, list[int]]:
    """Every client with its partners, itself included."""
    pairs = {(i, j): plain_overlap(marks[i], marks[j]) for i in marks for j in marks if i != j}
    if t > beta or not pairs:
        return {i: [i] for i in marks}
    average, largest = sum(pairs.values()) / len(pairs), max(pairs.values())
    limit = average + t / beta * (largest - average)
    return {i: [j for j in marks if j == i or pairs[i, j] >= limit - 1e-12] for i in marks}


def plain_score(x: np.ndarray, g: np.ndarray, hessian: bool) -> np.ndarray:
    return np.array([abs(-gj * xj + (0.5 * gj**2 * xj**2 if hessian else 0)) for gj, xj in zip(g, x, strict=True)])


def plain_rounds(
    cohorts: list[list[int]], tau: float, beta: int, sparse: bool, exact_gradient: bool, hessian: bool = False
) -> tuple[list[np.ndarray], list[dict[int, np.ndarray]], list[dict[int, np.ndarray]]]:
    """After each round: the global model, each client's next starting model, each client's mask."""
    server = START.astype(np.float64)
    custom: dict[int, np.ndarray] = {}
    marks: dict[int, np.ndarray] = {}
    history: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for t, cohort in enumerate(cohorts, start=1):
        sent, now = {}, {}
        for i in cohort:
            x = np.where(marks[i], custom[i], server) if i in marks else server.copy()
            begin = x
            for _ in range(STEPS):
                g = x - TARGETS[i]
                x = x - LR * g
            score = plain_score(x, g if exact_gradient else begin - x, hessian)
            now[i] = np.zeros(len(x), dtype=bool)
            for low, high in TENSORS:
                best = sorted(range(low, high), key=lambda j, s=score: -s[j])[: int(tau * (high - low))]
                now[i][[j for j in best if score[j] >= 1e-10]] = True
            sent[i] = np.where(now[i], x, 0.0) if sparse else x
        server = sum(SIZES[i] * sent[i] for i in cohort) / sum(SIZES[i] for i in cohort)
        for i, group in plain_groups(now, t, beta).items():
            custom[i], marks[i] = sum(sent[j] for j in group) / len(group), now[i]
        history[0].append(server)
        history[1].append({i: np.where(marks[i], custom[i], server) for i in marks})
        history[2].append(dict(marks))
    return history


def assert_equal_to_plain(algorithm: Algorithm, participation: float, world: int, rounds: int, **settings: Any) -> None:
    answers = run_rounds(algorithm, rounds, participation, world)
    servers, starts, marks = plain_rounds(answers[0]["cohorts"], **settings)
    seen = set()
    for answer in answers:
        for t in range(rounds):
            np.testing.assert_allclose(answer["servers"][t], servers[t], atol=3e-6)
            for client, (model, mask) in answer["starts"][t].items():
                np.testing.assert_allclose(model, starts[t].get(client, servers[t]), atol=3e-6)
                np.testing.assert_array_equal(mask, marks[t].get(client, np.zeros(9, dtype=bool)))
                seen.add((t, client))
    assert len(seen) == 3 * rounds
