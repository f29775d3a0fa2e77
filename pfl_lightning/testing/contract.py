"""The contract of algorithms: rules for every method, whoever wrote it.

Each check trains a federation of seven small clients, whose net has BatchNorm and dropout, for a few rounds.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.engine.cohort import draw_cohort
from pfl_lightning.foundation.torch_state import quiet_torch
from pfl_lightning.testing.toy import disturbed_summary, fingerprint, interrupted_summary, toy_loop, toy_summary

HASHES = ("model_sha256", "clients_sha256")


class ContractError(AssertionError):
    """A method that breaks the contract. The message says how."""


def check_algorithm(algorithm: Algorithm | type[Algorithm]) -> None:
    """Run all checks on a method. They take a few seconds, and start up to four processes.

    Args:
        algorithm: a method, or its class if all settings have defaults.

    Raises:
        ContractError: the method breaks the contract. The message says in which way.
    """
    method = algorithm() if isinstance(algorithm, type) else algorithm
    log = logging.getLogger("lightning.fabric")
    level = log.level
    log.setLevel(logging.ERROR)  # news about processes
    try:
        with quiet_torch():
            for check in CHECKS:
                check(method)
    finally:
        log.setLevel(level)


def same_on_ranks(algorithm: Algorithm, **config: Any) -> None:
    """A run gives the same bits on 1, 2 and 3 ranks."""
    settings = {"rounds": 5, "participation": 0.6, "eval_every": 3, **config}
    one = toy_summary(1, algorithm, **settings)
    for world in (2, 3):
        _require_equal(toy_summary(world, algorithm, **settings), one, algorithm, f"differs on {world} ranks")


def idle_ranks_change_nothing(algorithm: Algorithm) -> None:
    """Ranks without a client neither hang nor change anything."""
    settings = {"num_clients": 2, "participation": 0.5, "rounds": 3, "eval_every": 1}
    many, one = (toy_summary(world, algorithm, **settings) for world in (4, 1))
    _require_equal(many, one, algorithm, "differs if some ranks have no client")


def undrawn_clients_keep_their_state(algorithm: Algorithm) -> None:
    """A client not drawn in a round has the same state after it."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, participation=0.4, eval_every=1, rounds=4)
    for round_ in range(1, 5):
        held = {c: {k: t.clone() for k, t in s.items()} for c, s in loop.store.states.items()}
        loop.round()
        for client in set(held) - set(draw_cohort(1, round_, 7, 0.4)):
            state, before = loop.store.get(client) or {}, held[client]
            kept = state.keys() == before.keys() and all(torch.equal(state[k], before[k]) for k in state)
            _require(kept, algorithm, f"changes the state of client {client} in round {round_}, where it is not drawn")


def evaluation_changes_nothing(algorithm: Algorithm) -> None:
    """A run with evaluations ends with the same models as one without."""
    never, always = (toy_summary(1, algorithm, rounds=4, participation=0.4, eval_every=every) for every in (0, 1))
    _require_equal(always, never, algorithm, "trains other models if clients are evaluated", HASHES)


def fine_tuning_changes_its_own_columns_only(algorithm: Algorithm) -> None:
    """Fine-tuned copies are thrown away."""
    plain, tuned = (toy_summary(1, algorithm, rounds=2, finetune_epochs=epochs) for epochs in (0, 2))
    _require_equal(tuned, plain, algorithm, "trains other models if copies are fine-tuned for evaluations", HASHES)
    before = "all_acc_before"
    same = tuned["last"][before] == plain["last"][before]
    _require(same, algorithm, f"has another {before} if copies are fine-tuned")
    moved = tuned["last"]["all_loss_finetuned"] != tuned["last"]["all_loss_before"]
    _require(moved, algorithm, "does not change the copies that finetune gets")


def resuming_changes_nothing(algorithm: Algorithm) -> None:
    """A run that resumes from checkpoints on 2, then 3, then 1 ranks ends as if it had never stopped."""
    settings = {"participation": 0.6, "eval_every": 2}
    whole = toy_summary(1, algorithm, rounds=6, **settings)
    with TemporaryDirectory() as folder:
        parts = interrupted_summary(Path(folder), {2: 2, 4: 3, 6: 1}, algorithm, **settings)
    _require_equal(parts, whole, algorithm, "differs after it was resumed from a checkpoint")


def a_round_that_is_given_up_has_not_happened(algorithm: Algorithm) -> None:
    """A stop in the middle of a round leaves no trace."""
    settings = {"rounds": 3, "participation": 0.6, "eval_every": 2}
    summary, stops = disturbed_summary(2, algorithm, 1, [2, 9, 23, 40, 60], **settings)
    _require(stops > 0, algorithm, "cannot be stopped within a round")
    _require_equal(summary, toy_summary(1, algorithm, **settings), algorithm, "differs after rounds were given up")


def settings_stay(algorithm: Algorithm) -> None:
    """It is a dataclass and sets nothing on itself."""
    _require(dataclasses.is_dataclass(algorithm), algorithm, "is not a dataclass; put @dataclass above the class")
    before = dataclasses.asdict(algorithm)  # type: ignore[call-overload]
    toy_summary(1, algorithm, rounds=2)
    after = dataclasses.asdict(algorithm)  # type: ignore[call-overload]
    _require(after == before == vars(algorithm), algorithm, "sets attributes on itself; use client.memory")


def the_seed_matters(algorithm: Algorithm) -> None:
    """Another seed gives other models."""
    one, other = (toy_summary(1, algorithm, rounds=2, seed=seed) for seed in (1, 2))
    _require(any(one[key] != other[key] for key in HASHES), algorithm, "gives the same models for every seed")


CHECKS: tuple[Callable[[Algorithm], None], ...] = (
    settings_stay,
    the_seed_matters,
    evaluation_changes_nothing,
    fine_tuning_changes_its_own_columns_only,
    undrawn_clients_keep_their_state,
    same_on_ranks,
    idle_ranks_change_nothing,
    resuming_changes_nothing,
    a_round_that_is_given_up_has_not_happened,
)
"""All checks, the quick ones first."""


def _require(condition: bool, algorithm: Algorithm, problem: str) -> None:
    if not condition:
        raise ContractError(f"{type(algorithm).__name__} {problem}")


def _require_equal(
    one: Mapping[str, Any], other: Mapping[str, Any], algorithm: Algorithm, problem: str, keys: tuple[str, ...] = ()
) -> None:
    one, other = fingerprint(dict(one)), fingerprint(dict(other))
    differing = [key for key in keys or {**one, **other} if one.get(key) != other.get(key)]
    _require(not differing, algorithm, f"{problem}: {', '.join(differing)}")
