"""A client that several ranks train together is the client that one rank trains, up to rounding."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.fabric import Fabric
from torch import nn

from pfl_lightning.algorithms import APFL, Ditto, FedALA, FedAvg, FedOBP, FedPer, Floco, PFedFDA, PFedSD
from pfl_lightning.engine.per_sample import require_per_sample
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.outcome import assert_close, outcome
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import (
    PlainNet,
    ToyNet,
    disturbed_summary,
    fingerprint,
    interrupted_summary,
    toy_loop,
    toy_summary,
)

SETTINGS: dict[str, Any] = {"rounds": 4, "participation": 0.6, "eval_every": 2, "net": PlainNet}
TEAMS: dict[str, Any] = {**SETTINGS, "ranks_per_client": 2}
ALGORITHMS = [
    FedAvg(),
    FedOBP(quantile=0.8),
    FedPer(),
    Ditto(lam=0.5),
    APFL(),
    FedALA(max_epochs=2),  # needs gradients at download, and until its loss settles
    Floco(endpoints=3, tau=2),  # draws random numbers in the forward pass
    PFedFDA(),  # its loss keeps the features of the whole batch
    PFedSD(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_two_teams_of_two_ranks_give_what_one_rank_gives(algorithm):
    """Batches of 8 and last ones of 4, 6 or 9 are cut in two; seven unequal clients, of which four take part."""
    teams = outcome(4, algorithm, finetune_epochs=1, **TEAMS)
    assert_close(teams, outcome(1, algorithm, finetune_epochs=1, **SETTINGS))
    assert teams.held[0], "the leaders hold the states"
    assert teams.held[2]
    assert not teams.held[1] + teams.held[3]


def test_members_without_a_sample_do_not_disturb():
    """Batches of two samples and teams of three, of which one has nothing to do."""
    settings = {**SETTINGS, "batch_size": 2, "rounds": 2}
    for algorithm in (FedAvg(), Floco(endpoints=3, tau=2)):
        assert_close(outcome(3, algorithm, ranks_per_client=3, **settings), outcome(1, algorithm, **settings))


def test_each_member_computes_its_part_only():
    def work(fabric: Fabric) -> list[int]:
        loop = toy_loop(fabric, FedAvg(), **{**TEAMS, "rounds": 1, "eval_every": 0})
        seen: list[int] = []
        step = loop.engine.client.task.training_step
        loop.engine.client.task.training_step = lambda batch: seen.append(len(batch[1])) or step(batch)  # type: ignore
        loop.round()
        return seen

    first, second = run_on_ranks(work, 2)
    assert max(first) == 5, "of nine samples, a batch of eight and one more"
    assert [a - b for a, b in zip(first, second, strict=True)].count(0) > 0
    assert all(a - b in (0, 1) for a, b in zip(first, second, strict=True))


def test_fine_tuning_in_evaluations_is_not_split():
    """Clients are evaluated one by one where they live: a member that waited for another one would hang."""
    config = {**TEAMS, "rounds": 1, "eval_every": 1, "finetune_epochs": 2}
    assert_close(outcome(2, FedAvg(), **config), outcome(1, FedAvg(), **{**config, "ranks_per_client": 1}))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_team_stops_together_in_the_middle_of_a_round(rank):
    """One member is asked; its mates wait for it at the next batch, the other team at the end of the round."""
    summary, stops = disturbed_summary(4, FedOBP(quantile=0.5), rank, [1, 5, 6, 40, 60], **TEAMS)
    assert stops >= 3
    assert fingerprint(summary) == fingerprint(toy_summary(2, FedOBP(quantile=0.5), **TEAMS))


def test_resuming_with_other_numbers_of_teams_equals_no_stop(tmp_path):
    settings = {key: value for key, value in TEAMS.items() if key != "rounds"}
    resumed = interrupted_summary(tmp_path, {2: 4, 3: 2, 4: 6}, Ditto(), **settings)
    assert fingerprint(resumed) == fingerprint(toy_summary(4, Ditto(), **TEAMS))


def refusal(world: int, **config: Any) -> str:
    def work(fabric: Fabric) -> str:
        try:
            toy_loop(fabric, FedAvg(), **config)
        except ConfigError as error:
            return str(error)
        return "accepted"

    first, *others = run_on_ranks(work, world)
    assert all(other == first for other in others)
    return str(first)


def test_ranks_that_cannot_be_cut_into_teams_are_refused():
    assert refusal(3, **TEAMS) == (
        "loop.ranks_per_client: 2 is not allowed; use a number that divides the number of ranks, 3"
    )


def test_nets_whose_samples_depend_on_each_other_are_refused():
    assert refusal(2, **{**TEAMS, "net": ToyNet}) == (
        "loop.ranks_per_client: net.body.1 (BatchNorm1d) depends on the whole batch, so only 1 is supported; "
        "use GroupNorm"
    )


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        (nn.Dropout(0.1), False),
        (nn.Dropout(0.0), True),
        (nn.LSTM(2, 2, 2, dropout=0.5), False),
        (nn.LSTM(2, 2, 2), True),
        (nn.MultiheadAttention(2, 1, dropout=0.1), False),
        (nn.InstanceNorm1d(2), True),
        (nn.InstanceNorm1d(2, track_running_stats=True), False),
        (nn.GroupNorm(1, 2), True),
    ],
    ids=str,
)
def test_what_may_be_split(module, allowed):
    net = nn.Sequential(module)
    if allowed:
        require_per_sample(net, "key")
    else:
        with pytest.raises(ConfigError, match=r"key: 0 \(\w+\) .* so only 1 is supported"):
            require_per_sample(net, "key")
