"""What a toy run ends with, to be compared up to rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.foundation.state import State
from pfl_lightning.loop import FederatedFabricLoop
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import PlainNet, toy_loop


@dataclass
class Outcome:
    """The global model, every client's state, the last metrics, and which rank held which states."""

    vector: Tensor
    states: dict[int, State]
    last: dict[str, float]
    held: list[list[int]]


def collect(loop: FederatedFabricLoop) -> tuple[Tensor, dict[int, State], dict[str, float]]:
    """What one rank knows at the end of a run."""
    return loop.server.vector, {c: state for c in range(7) if (state := loop.store.get(c))}, loop.summary()["last"]


def merge(answers: list[tuple[Tensor, dict[int, State], dict[str, float]]]) -> Outcome:
    """The answers of all ranks as one; the model and the metrics must be the same on each."""
    vector, _, last = answers[0]
    for other, _, metrics in answers:
        assert torch.equal(other, vector)
        assert metrics == last
    states = {client: state for _, held, _ in answers for client, state in held.items()}
    return Outcome(vector, states, last, [sorted(held) for _, held, _ in answers])


def outcome(world: int, algorithm: Algorithm, **config: Any) -> Outcome:
    """Train the toy federation, with a net that may be split, on so many ranks."""

    def work(fabric: Fabric) -> tuple[Tensor, dict[int, State], dict[str, float]]:
        loop = toy_loop(fabric, algorithm, **{"net": PlainNet, **config})
        loop.fit()
        return collect(loop)

    return merge(run_on_ranks(work, world))


def assert_close(one: Outcome, other: Outcome, tolerance: float = 1e-5) -> None:
    """The same model, the same states and the same metrics, up to rounding."""
    torch.testing.assert_close(one.vector, other.vector, rtol=tolerance, atol=tolerance)
    assert one.states.keys() == other.states.keys()
    for client, state in one.states.items():
        assert state.keys() == other.states[client].keys()
        for name, value in state.items():
            exact = not value.is_floating_point()
            tolerances = {"rtol": 0.0 if exact else tolerance, "atol": 0.0 if exact else tolerance}
            torch.testing.assert_close(value, other.states[client][name], **tolerances)
    assert one.last.keys() == other.last.keys()
    for key, number in one.last.items():
        assert math.isclose(number, other.last[key], rel_tol=tolerance, abs_tol=tolerance), key
