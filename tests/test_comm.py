"""The exact mean: the same bits for any number of ranks, any order, any assignment."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning import comm
from pfl_lightning.comm import Comm
from pfl_lightning.errors import DivergedError
from pfl_lightning.exact_mean import LIMIT, ExactMean, Upload
from tests.ranks import run_on_ranks

CLIENTS = 6


def adversarial_uploads(share: bool) -> list[Upload]:
    """Values of 1e-6 beside 1e3 in the same entry, of both signs, with uneven weights."""
    generator = torch.Generator().manual_seed(0)
    sizes = [7, 1, 130, 55, 8, 999]
    uploads = []
    for client, n in enumerate(sizes):
        scale = torch.tensor([1e-6, 1e3, 1.0])[(torch.arange(300) + client) % 3]
        value = torch.randn(300, generator=generator) * scale
        entries = torch.rand(300, generator=generator) < 0.5
        entries[:10] = False
        part = {"vector": entries} if share else {}
        uploads.append(Upload(client, {"vector": value}, n / sum(sizes), part))
    return uploads


def mean_on(world: int, share: bool, turn: int = 0) -> torch.Tensor:
    def work(fabric: Fabric) -> torch.Tensor:
        mine = [u for u in adversarial_uploads(share) if (u.client + turn) % world == fabric.global_rank]
        current = {"vector": torch.full((300,), 0.25)}
        return Comm(fabric).mean(iter(mine), current, ("vector",) if share else ())["vector"]

    answers = run_on_ranks(work, world)
    for answer in answers[1:]:
        assert torch.equal(answer, answers[0])
    return answers[0]


@pytest.mark.parametrize("share", [False, True])
def test_the_mean_has_the_same_bits_on_1_2_3_and_8_ranks(share):
    one = mean_on(1, share)
    for world, turn in [(2, 0), (2, 1), (3, 0), (8, 3)]:
        assert torch.equal(mean_on(world, share, turn), one)


def test_the_order_of_uploads_does_not_matter():
    results = []
    for order in (range(CLIENTS), reversed(range(CLIENTS)), [3, 0, 5, 1, 4, 2]):
        uploads = adversarial_uploads(True)
        total = ExactMean({"vector": torch.zeros(300)}, ["vector"], 0, 1)
        for index in order:
            assert total.add(uploads[index])
        results.append(total.result(1)["vector"])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("share", [False, True])
def test_the_mean_equals_exact_rational_arithmetic(share):
    """Every entry against fractions: half a unit of 2⁻⁴⁴ per client, then the rounding to float32."""
    result = mean_on(1, share)
    uploads = adversarial_uploads(share)
    for entry in range(300):
        top, bottom = Fraction(0), Fraction(0)
        for upload in uploads:
            if not share or bool(upload.share["vector"][entry]):
                weight = Fraction(upload.weight)
                top += weight * Fraction(float(upload.values["vector"][entry]))
                bottom += weight
        wanted = float(top / bottom) if bottom else 0.25
        rounding = CLIENTS * 2.0**-45 / float(bottom or 1)
        assert math.isclose(float(result[entry]), wanted, rel_tol=1.2e-7, abs_tol=rounding), entry


def test_entries_that_nobody_shares_keep_the_servers_value():
    assert torch.equal(mean_on(2, True)[:10], torch.full((10,), 0.25))


def test_equal_values_stay_exactly_equal_with_any_weights():
    value = torch.tensor([0.1, -3.7e-5, 1234.567])
    total = ExactMean({"vector": torch.zeros(3)}, [], 0, 1)
    for client, weight in enumerate([1 / 3, 1 / 7, 1 - 1 / 3 - 1 / 7]):
        total.add(Upload(client, {"vector": value}, weight))
    assert torch.equal(total.result(1)["vector"], value)


def test_a_weighted_mean_by_hand():
    """n = (1, 3), models 0 and 4: (1·0 + 3·4) / 4 = 3; entry 1 is shared by the first client only: 8."""
    total = ExactMean({"vector": torch.zeros(2)}, ["vector"], 0, 1)
    total.add(Upload(0, {"vector": torch.tensor([0.0, 8.0])}, 0.25))
    total.add(Upload(1, {"vector": torch.tensor([4.0, 5.0])}, 0.75, {"vector": torch.tensor([True, False])}))
    assert total.result(1)["vector"].tolist() == [3.0, 8.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2 * LIMIT])
@pytest.mark.parametrize("world", [1, 2])
def test_a_diverged_client_is_named_on_every_rank(bad, world):
    def work(fabric: Fabric) -> str:
        value = torch.zeros(5)
        if fabric.global_rank == world - 1:
            value[3] = bad
        comm = Comm(fabric, round=12)
        try:
            comm.mean(iter([Upload(40 + fabric.global_rank, {"vector": value}, 0.5)]), {"vector": torch.zeros(5)})
        except DivergedError as error:
            return str(error)
        return "no error"

    for message in run_on_ranks(work, world):
        assert f"client {39 + world} diverged in round 12" in message


def test_the_largest_allowed_values_do_not_overflow():
    total = ExactMean({"vector": torch.zeros(2)}, [], 0, 1)
    for client in range(1000):
        assert total.add(Upload(client, {"vector": torch.tensor([LIMIT, -LIMIT])}, 1 / 1000))
    assert total.result(1)["vector"].tolist() == [LIMIT, -LIMIT]


def test_a_value_that_is_not_shared_may_be_anything():
    total = ExactMean({"vector": torch.zeros(2)}, ["vector"], 0, 1)
    value, share = torch.tensor([1.0, math.nan]), torch.tensor([True, False])
    assert total.add(Upload(0, {"vector": value}, 1.0, {"vector": share}))
    assert total.result(1)["vector"].tolist() == [1.0, 0.0]


def test_several_names_travel_in_one_tensor():
    current = {"vector": torch.zeros(4), "prototypes": torch.zeros(2, 3)}
    total = ExactMean(current, [], 0, 1)
    total.add(Upload(0, {"vector": torch.ones(4), "prototypes": torch.arange(6.0).view(2, 3)}, 1.0))
    means = total.result(1)
    assert torch.equal(means["prototypes"], torch.arange(6.0).view(2, 3))
    assert torch.equal(means["vector"], torch.ones(4))
    assert total.total.dtype == torch.int64


def test_rows_filled_by_different_ranks_come_together_bit_for_bit():
    values = torch.tensor([[0.1, -2.5e-300], [float("nan"), 1e300], [3.0, -0.0]], dtype=torch.float64)

    def work(fabric: Fabric) -> torch.Tensor:
        table = torch.zeros_like(values)
        for row in range(3):
            if row % 2 == fabric.global_rank:
                table[row] = values[row]
        return Comm(fabric).merge_rows(table)

    for table in run_on_ranks(work, 2):
        assert torch.equal(table.view(torch.int64), values.view(torch.int64))


@pytest.mark.parametrize("in_flight", [0, 1 << 28])
def test_states_follow_their_clients(in_flight, monkeypatch):
    def work(fabric: Fabric) -> dict[int, dict[str, torch.Tensor]]:
        rank = fabric.global_rank
        states = {
            10 * rank + i: {"theta": torch.arange(4) + 100 * rank + i, "visits": torch.tensor(i)} for i in range(2)
        }
        Comm(fabric).move_states(states, [(0, 0, 1), (11, 1, 0), (1, 0, 2), (20, 2, 1)])
        return states

    monkeypatch.setattr(comm, "IN_FLIGHT", in_flight)
    held = run_on_ranks(work, 3)
    assert [sorted(states) for states in held] == [[11], [0, 10, 20], [1, 21]]
    assert torch.equal(held[0][11]["theta"], torch.arange(4) + 101)
    assert int(held[1][20]["visits"]) == 0


def test_ranks_notice_that_they_differ():
    def work(fabric: Fabric) -> tuple[bool, bool]:
        comm = Comm(fabric)
        return comm.all_same(torch.tensor([5])), comm.all_same(torch.tensor([fabric.global_rank]))

    assert run_on_ranks(work, 2) == [(True, False), (True, False)]


def open_comm(fabric: Fabric, world: int) -> Comm:
    """Clients 2, 5, 6 and 9, dealt out in turns."""
    comm = Comm(fabric)
    clients = [2, 5, 6, 9]
    comm.open_round(3, [clients[rank::world] for rank in range(world)])
    return comm


def values_of(comm: Comm) -> dict[int, torch.Tensor]:
    values = {c: torch.randn(50, generator=torch.Generator().manual_seed(c)) * 10.0 ** (c - 5) for c in comm.cohort}
    return {client: value for client, value in values.items() if comm.owner[client] == comm.rank}


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_tables_and_every_clients_value_reach_every_rank_in_order(world):
    def work(fabric: Fabric) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        comm = open_comm(fabric, world)
        local = values_of(comm)
        table = comm.table({c: v.double() for c, v in local.items()}, torch.empty(50, dtype=torch.float64))
        each = list(comm.each(local, torch.empty(50)))
        return table, torch.stack([value for _, value in each]), [client for client, _ in each]

    wanted = torch.stack(
        [torch.randn(50, generator=torch.Generator().manual_seed(c)) * 10.0 ** (c - 5) for c in (2, 5, 6, 9)]
    )
    for table, each, order in run_on_ranks(work, world):
        assert order == [2, 5, 6, 9]
        assert torch.equal(table, wanted.double())
        assert torch.equal(each, wanted)


def test_mixtures_have_the_same_bits_on_any_number_of_ranks():
    weights = torch.tensor([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0]], dtype=torch.float64)

    def mixed_on(world: int) -> dict[int, torch.Tensor]:
        def work(fabric: Fabric) -> dict[int, torch.Tensor]:
            comm = open_comm(fabric, world)
            return comm.mix(values_of(comm), weights, torch.full((50,), 7.0))

        return {client: value for answer in run_on_ranks(work, world) for client, value in answer.items()}

    one = mixed_on(1)
    values = [torch.randn(50, generator=torch.Generator().manual_seed(c)) * 10.0 ** (c - 5) for c in (2, 5, 6, 9)]
    assert torch.equal(one[5], values[1])
    assert 9 not in one, "a row without weights wants nothing"
    for row, client in ((0, 2), (2, 6)):
        plain = sum(float(w) * v.double() for w, v in zip(weights[row], values, strict=True))
        torch.testing.assert_close(one[client].double(), plain, rtol=1e-6, atol=1e-12)
    for world in (2, 3, 5):
        other = mixed_on(world)
        assert other.keys() == one.keys()
        assert all(torch.equal(one[client], other[client]) for client in one)


def test_a_diverged_client_is_named_by_every_rank_that_mixes():
    def work(fabric: Fabric) -> str:
        comm = open_comm(fabric, 2)
        local = values_of(comm)
        if 5 in local:
            local[5][0] = math.nan
        try:
            comm.mix(local, torch.eye(4, dtype=torch.float64), torch.empty(50))
        except DivergedError as error:
            return str(error)
        return "no error"

    assert all("client 5 diverged in round 3" in text for text in run_on_ranks(work, 2))
