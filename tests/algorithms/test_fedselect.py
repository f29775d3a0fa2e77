"""FedSelect against a plain NumPy computation and numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithm import Server, Upload
from pfl_lightning.algorithms import FedAvg, FedSelect, Local
from pfl_lightning.algorithms.fedselect import grow
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from tests.helpers.ranks import run_on_ranks
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop
from tests.helpers.visits import memory_of, open_client

CONTRACT = [
    FedSelect(p=0.5, alpha=0.6),
    FedSelect(choose="random", selection="whole_model", update_every=2, biases=False, bn_buffers="average"),
]
LIKE_UNIFORM_FEDAVG = [FedSelect(alpha=0.0, bn_buffers="average")]
LIKE_LOCAL = [FedSelect(layers=["net"])]

TARGETS = np.random.default_rng(3).normal(size=(3, 7)) * 3
START = [0.5, -0.5, 1.0, 0.0, -1.0, 2.0, 0.25]


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def plain_fedselect(
    cohorts: list[list[int]],
    p: float,
    alpha: float,
    steps: int,
    lr: float,
    personal_lr: float | None = None,
    overshoot: bool = False,
    since_update: int = 0,
) -> tuple[np.ndarray, dict[int, np.ndarray], dict[int, np.ndarray], list[np.ndarray]]:
    """The paper's Algorithms 1 to 3 for the losses ½‖x − a_i‖², one tensor, one batch a pass.

    `since_update`: as in the authors' code, the change is that since the last selection, every so many visits.
    """
    n = TARGETS.shape[1]
    server = np.array(START)
    own, mask, counts = {}, {}, []
    visits: dict[int, int] = {}
    past: dict[int, np.ndarray] = {}
    for cohort in cohorts:
        total, contributors, new_masks = np.zeros(n), np.zeros(n), {}
        for i in cohort:
            m = mask.get(i, np.zeros(n, bool))
            broadcast = mask.get(("used", i), np.zeros(n, bool))
            x = np.where(broadcast, own.get(i, server), server)
            start = x.copy()
            for _ in range(steps):
                for part, rate in ((m, personal_lr or lr), (~m, lr)):
                    x = np.where(part, x - rate * (x - TARGETS[i]), x)
            own[i] = x
            total += np.where(m, 0, x)
            contributors += ~m
            visits[i] = visits.get(i, 0) + 1
            if since_update and visits[i] % since_update:
                mask["used", i], new_masks[i] = m, m
                continue
            delta = np.where(m, -1.0, np.abs(x - (past.get(i, np.array(START)) if since_update else start)))
            past[i] = x.copy()
            room = math.floor(alpha * n + 1e-9) - m.sum()
            if overshoot:
                room = 0 if m.sum() / n > alpha else n
            take = min(room, math.ceil(p * (~m).sum() - 1e-9))
            new = m.copy()
            new[np.argsort(-delta, kind="stable")[: max(take, 0)]] = True
            new_masks[i] = new
            mask["used", i] = m
        server = np.where(contributors > 0, total / np.maximum(contributors, 1), server)
        mask.update(new_masks)
        counts.append(contributors)
    return server, own, {i: m for i, m in mask.items() if isinstance(i, int)}, counts


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("p", "alpha"), [(0.25, 0.6), (0.5, 1.0), (0.3, 0.3)])
def test_three_clients_two_a_round_against_numpy(world: int, p: float, alpha: float) -> None:
    """Six rounds. New masks take effect one visit later; a newly personal entry starts from the broadcast mean."""

    def work(fabric: Fabric) -> dict[str, Any]:
        run = ScalarClients(FedSelect(p=p, alpha=alpha), TARGETS.tolist(), [2, 5, 1], 2, 0.1, START, 0.67, fabric)
        cohorts = [run.rounds(1) for _ in range(6)]
        states = {c: run.loop.store.states[c] for c in run.loop.store.states}
        return {"cohorts": cohorts, "server": run.loop.server.vector.numpy(), "states": states}

    answers = run_on_ranks(work, world)
    cohorts = answers[0]["cohorts"]
    assert {len(cohort) for cohort in cohorts} == {2}
    server, own, mask, _ = plain_fedselect(cohorts, p, alpha, steps=2, lr=0.1)
    seen = set()
    for answer in answers:
        np.testing.assert_allclose(answer["server"], server, atol=2e-6)
        for client, state in answer["states"].items():
            empty = masks.pack(torch.zeros(7, dtype=torch.bool))
            used, added = (masks.unpack(state.get(name, empty), 7) for name in ("mask", "memory/added"))
            assert not (used & added).any()
            assert (used | added).tolist() == mask[client].tolist()
            if used.any():
                np.testing.assert_allclose(state["personal"], own[client][used.numpy()], atol=2e-6)
            seen.add(client)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(
    ("alpha", "settings", "reference"),
    [
        (0.35, {"personal_lr": 0.3, "global_lr": 0.05}, {"personal_lr": 0.3, "lr": 0.05}),
        (0.35, {"overshoot": True}, {"overshoot": True}),
        # room for a second selection, which alone looks at the model after the first
        (0.9, {"delta": "update", "update_every": 2}, {"since_update": 2}),
    ],
)
def test_options_of_the_authors_against_numpy(
    alpha: float, settings: dict[str, Any], reference: dict[str, Any]
) -> None:
    """Two learning rates, the overshoot of alpha, and the change since the last selection."""
    run = ScalarClients(FedSelect(p=0.3, alpha=alpha, **settings), TARGETS.tolist(), [2, 5, 1], 2, 0.1, START, 0.67)
    cohorts = [run.rounds(1) for _ in range(8)]
    server, _, mask, _ = plain_fedselect(cohorts, 0.3, alpha, steps=2, **{"lr": 0.1, **reference})
    np.testing.assert_allclose(run.loop.server.vector.numpy(), server, atol=2e-6)
    plain = plain_fedselect(cohorts, 0.3, alpha, steps=2, lr=0.1)
    assert not np.allclose(server, plain[0], atol=1e-4)
    for client in range(3):
        live = open_client(run.loop, client)
        run.loop.algorithm.download(live, run.loop.server)
        assert live.mask.tolist() == mask[client].tolist()


@pytest.mark.parametrize(("alpha", "share"), [(0.05, 0.25), (0.30, 0.4375), (0.50, 0.578125), (0.80, 0.822021484375)])
def test_the_overshoot_ends_where_the_authors_code_does(alpha: float, share: float) -> None:
    """1 − 0.75^k for the first k whose share is above alpha: k = 1, 2, 3, 6. 4096 entries are whole at every k."""
    mask = torch.zeros(4096, dtype=torch.bool)
    for _ in range(12):
        mask = grow(mask, torch.arange(4096.0), 0.25, alpha, overshoot=True)
    assert float(mask.float().mean()) == pytest.approx(share)


def sends(upload: Upload) -> torch.Tensor:
    """The entries of the model that an upload sends, bool [7]."""
    return upload.sends.get("vector", torch.ones(7, dtype=torch.bool))


def test_contributor_counts_by_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which clients a mean is over, entry by entry: Σ of those who share it / how many they are; nobody: it stays."""
    run = ScalarClients(FedSelect(p=0.5, alpha=1.0), TARGETS.tolist(), [1, 9, 4], 1, 0.1, START)
    uploads: list[Upload] = []
    upload = FedSelect.upload

    def spy(self: FedSelect, client: ClientModule, server: Server) -> Upload:
        sent = upload(self, client, server)
        uploads.append(Upload(sent.client, {"vector": sent.values["vector"].clone()}, sent.weight, sent.sends))
        return sent

    monkeypatch.setattr(FedSelect, "upload", spy)
    numbers = set()
    for _ in range(6):
        old = run.loop.server.vector.clone()
        uploads.clear()
        run.rounds(1)
        for entry in range(7):
            sharing = [float(u.values["vector"][entry]) for u in uploads if sends(u)[entry]]
            expected = sum(sharing) / len(sharing) if sharing else float(old[entry])
            assert float(run.loop.server.vector[entry]) == pytest.approx(expected, abs=1e-6)
            numbers.add(len(sharing))
    assert numbers == {0, 1, 2, 3}


def test_growth_by_hand() -> None:
    """Ten entries, two taken, p = 0.25 of eight = 2; p = 0.3: 2.4, rounded up to 3; alpha 0.3 leaves room for one.

    Shares are taken as written: 0.29 of 100 is 29, though 0.29 * 100 is less as a float.
    """
    mask = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0, 0, 0]).bool()
    scores = torch.tensor([3.0, 9, 1, 4, 9, 4, 0, 5, 2, 0])
    assert grow(mask, scores, 0.25, 1.0).nonzero().flatten().tolist() == [1, 3, 4, 7]
    assert grow(mask, scores, 0.3, 1.0).nonzero().flatten().tolist() == [1, 3, 4, 5, 7]
    assert grow(mask, scores, 0.3, 0.3).nonzero().flatten().tolist() == [1, 4, 7]
    assert torch.equal(grow(mask, scores, 0.3, 0.1), mask)
    assert grow(torch.zeros(100).bool(), torch.arange(100.0), 1.0, 0.29).sum() == 29


def test_masks_only_grow_and_stop_at_alpha_in_every_tensor() -> None:
    """ToyNet has tensors of 48, 8, 8, 8, 24, 3 entries; alpha 0.4: exactly 19, 3, 3, 3, 9, 1 in the end."""
    loop = toy_loop(one_rank(), FedSelect(p=0.25, alpha=0.4), rounds=12, eval_every=0)
    before: dict[int, torch.Tensor] = {}
    for _ in range(12):
        loop.round()
        for client, state in loop.store.states.items():
            mask = masks.unpack(state["mask"], loop.server.layout.size)
            assert client not in before or not (before[client] & ~mask).any()
            before[client] = mask
    for mask in before.values():
        counts = [int(mask[s.start : s.stop].sum()) for s in loop.server.layout.parameter_spans]
        assert counts == [19, 3, 3, 3, 9, 1]


def test_alpha_of_the_whole_model() -> None:
    """99 parameters, alpha 0.5: 49 in all, wherever they moved most, from the second visit on."""
    loop = toy_loop(one_rank(), FedSelect(p=1.0, alpha=0.5, selection="whole_model"), rounds=2, eval_every=0)
    loop.round()
    assert not any(masks.unpack(s["mask"], 115)[:99].any() for s in loop.store.states.values())
    loop.round()
    counts = {int(masks.unpack(s["mask"], 115)[:99].sum()) for s in loop.store.states.values()}
    assert counts == {49}


def test_biases_can_be_left_out() -> None:
    loop = toy_loop(one_rank(), FedSelect(p=1.0, alpha=1.0, biases=False), rounds=2, eval_every=0)
    loop.fit()
    mask = masks.unpack(loop.store.states[0]["mask"], loop.server.layout.size)
    personal = {s.name for s in loop.server.layout.parameter_spans if mask[s.start : s.stop].all()}
    assert personal == {"net.body.0.weight", "net.body.1.weight", "net.head.weight"}


def test_most_and_least_are_opposites() -> None:
    """After one round of full-batch steps the change is ∝ |a − x|: the far entries against the near ones."""
    chosen = {}
    for choose in ("most", "least"):
        run = ScalarClients(FedSelect(p=0.4, alpha=1.0, choose=choose), TARGETS.tolist(), [1, 1, 1], 1, 0.1, START)
        run.rounds(1)
        chosen[choose] = [masks.unpack(memory_of(run.loop, c)["added"], 7).numpy() for c in range(3)]
    for client in range(3):
        order = np.argsort(np.abs(TARGETS[client] - START))
        assert set(np.flatnonzero(chosen["least"][client])) == set(order[:3])
        assert set(np.flatnonzero(chosen["most"][client])) == set(order[-3:])


def test_random_scores_differ_by_client_and_round() -> None:
    run = ScalarClients(FedSelect(choose="random"), TARGETS.tolist(), [1, 1, 1], 1, 0.1, START)
    found = set()
    for client in (0, 1):
        for round_ in (1, 2):
            module = open_client(run.loop, client)
            module.round = round_
            found.add(tuple(run.loop.algorithm.score(module, module.theta).tolist()))
    assert len(found) == 4


def test_update_every_counts_a_clients_own_visits() -> None:
    run = ScalarClients(FedSelect(p=0.2, alpha=1.0, update_every=3), TARGETS.tolist(), [1, 1, 1], 1, 0.1, START)
    grown = []
    for _ in range(6):
        run.rounds(1)
        grown.append("added" in memory_of(run.loop, 0))
    assert grown == [False, False, True, False, False, True]


def test_alpha_1_ends_as_local_training_bit_for_bit() -> None:
    """p = 1: round 1 is unweighted averaging; from then on each client trains alone from what the mean gave it."""
    ours = toy_loop(one_rank(), FedSelect(p=1.0, alpha=1.0), rounds=5, eval_every=0)
    ours.fit()
    local = toy_loop(one_rank(), FedAvg(weighting="uniform", bn_buffers="local"), rounds=5, eval_every=0)
    local.round()
    for client in range(7):
        live = open_client(local, client)
        local.algorithm.download(live, local.server)
        live.mask.fill_(True)
        local.store.states[client] = live.dump_state()
    local.algorithm = local.engine.algorithm = Local()
    local.fit()
    for client in range(7):
        assert torch.equal(ours.store.states[client]["personal"], local.store.states[client]["personal"])
    assert torch.equal(ours.server.vector, local.server.vector)


def test_a_pass_moves_its_own_entries_only() -> None:
    """Momentum included: while the personal pass runs, no global entry moves, and the other way round."""
    loop = toy_loop(one_rank(), FedSelect(p=0.5, alpha=0.5), rounds=3, local_epochs=1, eval_every=0)
    loop.round()
    open_client(loop, 0)
    loop.algorithm.download(loop.engine.client, loop.server)
    personal = loop.engine.client.mask[:99].clone()
    assert 0 < personal.sum() < 99
    moved = []
    original = loop.engine.client.train_epochs

    def spy(*args: Any, **kwargs: Any) -> None:
        start = loop.engine.client.theta.clone()
        original(*args, **kwargs)
        moved.append(loop.engine.client.theta != start)

    loop.engine.client.train_epochs = spy  # type: ignore[method-assign]
    loop.algorithm.fit(loop.engine.client, loop.server)
    assert len(moved) == 2
    assert not (moved[0] & ~personal).any()
    assert not (moved[1] & personal).any()
    assert moved[0].any()
    assert moved[1].any()


def test_both_passes_of_an_epoch_see_the_same_batches_at_rates_that_follow_the_schedule() -> None:
    loop = toy_loop(one_rank(), FedSelect(p=0.5, alpha=0.5, personal_lr=0.2), rounds=3, local_epochs=2, eval_every=0)
    loop.round()
    open_client(loop, 0)
    loop.algorithm.download(loop.engine.client, loop.server)
    loop.engine.client.rate_factor = 0.5
    passes: list[tuple[Any, Any]] = []
    loop.engine.client.train_epochs = lambda *a, **k: passes.append((k["stream"], k["lr"]))  # type: ignore[method-assign]
    loop.algorithm.alternate(loop.engine.client)
    streams = [stream for stream, _ in passes]
    assert streams[0] == streams[1] != streams[2] == streams[3]
    assert [rate for _, rate in passes] == [0.1, None, 0.1, None]


def test_the_overshoot_grows_a_tensor_that_is_just_at_its_limit() -> None:
    mask, scores = torch.tensor([True, True, False, False]), torch.tensor([9.0, 9.0, 1.0, 2.0])
    assert grow(mask, scores, 0.5, 0.5, overshoot=True).tolist() == [True, True, False, True]
    assert grow(mask, scores, 0.5, 0.5).tolist() == mask.tolist()


def test_bytes_follow_the_masks() -> None:
    """7 floats each way in round 1. ⌈7/2⌉ = 4 become personal: they still come down once more, and go up no more."""
    run = ScalarClients(FedSelect(p=0.5, alpha=1.0), TARGETS.tolist(), [1, 1, 1], 1, 0.1, START)
    sent = []
    for _ in range(4):
        scalars = run.loop.round().scalars
        sent.append((scalars["up_bytes"] // 12, scalars["down_bytes"] // 12))
    assert sent == [(7, 7), (3, 7), (1, 3), (0, 1)]


def test_a_client_that_was_never_drawn_has_the_global_model() -> None:
    run = ScalarClients(FedSelect(p=1.0, alpha=1.0), TARGETS.tolist(), [1, 1, 1], 1, 0.1, START, participation=0.34)
    (drawn,) = run.rounds(1)
    other = (drawn + 1) % 3
    open_client(run.loop, other)
    run.loop.algorithm.personalize(run.loop.engine.client, run.loop.server)
    assert torch.equal(run.loop.engine.client.vector, run.loop.server.vector)
    assert not run.loop.engine.client.mask.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, "alpha: 1.5 is not allowed; use a number from 0 to 1"),
        ({"alpha": -0.1}, "alpha: -0.1 is not allowed; use a number from 0 to 1"),
        ({"alpha": math.nan}, "alpha: nan is not allowed; use a number from 0 to 1"),
        ({"p": 0}, "p: 0 is not allowed; use a number above 0 and up to 1"),
        ({"p": 1.1}, "p: 1.1 is not allowed; use a number above 0 and up to 1"),
        ({"delta": "round"}, "delta: 'round' is not allowed; use visit or update"),
        ({"personal_lr": 0}, "personal_lr: 0 is not allowed; use a number above 0, or null"),
        ({"update_every": 0}, "update_every: 0 is not allowed; use a whole number >= 1"),
        ({"choose": "best"}, "choose: 'best' is not allowed; use most, least or random"),
        ({"selection": "layer"}, "selection: 'layer' is not allowed; use per_tensor or whole_model"),
        ({"layers": []}, "layers: the list is empty; name the modules to keep personal, or leave it out"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        FedSelect(**settings)
    assert str(error.value) == message


def test_a_layer_that_does_not_exist_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"^algorithm\.layers: 'net\.tail' is not in the model; it has net\.body\.0"):
        toy_loop(one_rank(), FedSelect(layers=["net.tail"]))


def test_given_layers_are_personal_and_nothing_else() -> None:
    loop: FederatedFabricLoop = toy_loop(one_rank(), FedSelect(layers=["net.head"]), rounds=3, eval_every=0)
    loop.fit()
    for state in loop.store.states.values():
        shares = masks.share_by_layer(masks.unpack(state["mask"], loop.server.layout.size), loop.server.layout)
        assert {name for name, share in shares.items() if share == 1} == {"net.head.weight", "net.head.bias"}
        assert sum(shares.values()) == 2
