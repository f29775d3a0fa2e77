"""The uploads of a round: the same bits for any number of ranks, any order, any assignment."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithms.parts.pairwise import dot
from pfl_lightning.comm.exact_mean import LIMIT
from pfl_lightning.comm.upload import Upload
from pfl_lightning.comm.uploads import Uploads
from pfl_lightning.foundation.errors import DivergedError, RunError
from tests.helpers.ranks import run_on_ranks
from tests.helpers.uploads import adversarial_uploads, uploads_of

CLIENTS = [2, 5, 6, 9]


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def mean_on(world: int, partial: bool, turn: int = 0) -> Tensor:
    """The mean of the adversarial uploads. Client c is trained by rank (c + turn) % world."""

    def work(fabric: Fabric) -> Tensor:
        clients_of = [[c for c in range(6) if (c + turn) % world == rank] for rank in range(world)]
        uploads = uploads_of(fabric, clients_of, adversarial_uploads(partial))
        return uploads.mean({"vector": torch.full((300,), 0.25)})["vector"]

    answers = run_on_ranks(work, world)
    for answer in answers[1:]:
        assert torch.equal(answer, answers[0])
    return answers[0]


@pytest.mark.parametrize("partial", [False, True])
def test_the_mean_has_the_same_bits_on_1_2_3_and_8_ranks(partial):
    one = mean_on(1, partial)
    for world, turn in [(2, 0), (2, 1), (3, 0), (8, 3)]:
        assert torch.equal(mean_on(world, partial, turn), one)


@pytest.mark.parametrize("partial", [False, True])
def test_the_mean_equals_exact_rational_arithmetic(partial):
    """Every entry against fractions: half a unit of 2⁻⁴⁴ per client, then the rounding to float32."""
    result = mean_on(1, partial)
    uploads = adversarial_uploads(partial)
    for entry in range(300):
        top, bottom = Fraction(0), Fraction(0)
        for upload in uploads:
            if not partial or bool(upload.sends["vector"][entry]):
                weight = Fraction(upload.weight)
                top += weight * Fraction(float(upload.values["vector"][entry]))
                bottom += weight
        wanted = float(top / bottom) if bottom else 0.25
        rounding = 6 * 2.0**-45 / float(bottom or 1)
        assert math.isclose(float(result[entry]), wanted, rel_tol=1.2e-7, abs_tol=rounding), entry


def test_entries_that_nobody_sends_keep_the_servers_value():
    assert torch.equal(mean_on(2, True)[:10], torch.full((10,), 0.25))


def test_a_client_that_sends_a_part_counts_on_ranks_that_have_only_whole_uploads():
    """Rank 0 has client 0 (whole), rank 1 client 1 (entry 0 only): entry 1 is client 0's alone."""

    def work(fabric: Fabric) -> list[float]:
        sent = {"vector": torch.tensor([True, False])}
        found = [Upload(0, {"vector": torch.ones(2)}, 0.5), Upload(1, {"vector": torch.full((2,), 3.0)}, 0.5, sent)]
        mean: list[float] = uploads_of(fabric, [[0], [1]], found).mean({"vector": torch.zeros(2)})["vector"].tolist()
        return mean

    assert run_on_ranks(work, 2) == [[2.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("where", "bad"),
    [("values", math.nan), ("values", math.inf), ("values", -math.inf), ("values", 2 * LIMIT), ("extra", math.nan)],
)
@pytest.mark.parametrize("world", [1, 2])
def test_a_diverged_client_is_named_on_every_rank(where, bad, world):
    def work(fabric: Fabric) -> str:
        found = []
        for rank in range(world):
            value = torch.zeros(5)
            value[3] = bad if rank == world - 1 else 0.0
            values = {"vector": value} if where == "values" else {}
            found.append(Upload(40 + rank, values, 0.5, extra={"update": value} if where == "extra" else {}))
        try:
            uploads_of(fabric, [[40 + rank] for rank in range(world)], found, round_=12)
        except DivergedError as error:
            return str(error)
        return "no error"

    for message in run_on_ranks(work, world):
        assert f"client {39 + world} diverged in round 12" in message


def test_only_the_values_leave_an_upload():
    """`extra`, `sends` and the weight stay for the server. The values are in the sum already."""
    upload = Upload(3, {"vector": torch.ones(4)}, 0.5, {"vector": torch.ones(4).bool()}, {"note": torch.ones(2)})
    kept = uploads_of(one_rank(), [[3]], [upload]).local[3]
    assert (kept.values, kept.weight, list(kept.sends), list(kept.extra)) == ({}, 0.5, ["vector"], ["note"])


def test_bytes_are_4_per_entry_sent_1_per_byte_and_an_eighth_per_bit():
    """4·(3 of 5) + 4·6 averaged, 4·2 + 3 + ⌈9/8⌉ = 2 extra. A number of bytes that is given counts instead."""
    values = {"vector": torch.zeros(5), "prototypes": torch.zeros(2, 3)}
    sends = {"vector": torch.tensor([True, True, False, True, False])}
    extra = {"float64": torch.zeros(2).double(), "bytes": torch.zeros(3).byte(), "bits": torch.zeros(9).bool(), "id": 7}
    assert Upload(0, values, 1.0, sends, extra).count_bytes() == 4 * 3 + 4 * 6 + 4 * 2 + 3 + 2
    assert Upload(0, values, 1.0, sends, extra, bytes=11).count_bytes() == 11


def value_of(client: int) -> Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(client)) * 10.0 ** (client - 5)


def numbered_uploads(fabric: Fabric, diverged: int = -1) -> Uploads:
    """Clients 2, 5, 6 and 9, given to the ranks in turns. Their `extra` is a vector and the same in float64."""
    values = {client: value_of(client) for client in CLIENTS}
    if diverged in values:
        values[diverged][0] = 2 * LIMIT
    found = [Upload(c, {}, 0.25, extra={"value": v, "double": v.double()}) for c, v in values.items()]
    return uploads_of(fabric, [CLIENTS[rank :: fabric.world_size] for rank in range(fabric.world_size)], found, 3)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_tables_and_pairs_reach_every_rank_in_the_order_of_the_cohort(world):
    def work(fabric: Fabric) -> tuple[Tensor, Tensor]:
        uploads = numbered_uploads(fabric)
        table = uploads.table("double", torch.empty(50, dtype=torch.float64))
        return table, uploads.pairwise("value", "value", torch.empty(50), dot)

    wanted = torch.stack([value_of(client) for client in CLIENTS])
    pairs = torch.stack([torch.stack([dot(a, b) for b in wanted]) for a in wanted])
    for table, products in run_on_ranks(work, world):
        assert torch.equal(table, wanted.double())
        assert torch.equal(products, pairs)


def test_pairs_are_rows_against_columns():
    found = [
        Upload(c, {}, 0.5, extra={"a": torch.tensor(a), "b": torch.tensor(b)}) for c, a, b in [(0, 1, 5), (1, 2, 7)]
    ]
    table = uploads_of(one_rank(), [[0, 1]], found).pairwise("a", "b", torch.tensor(0), lambda a, b: 10.0 * a + b)
    assert table.tolist() == [[15, 17], [25, 27]]


def test_mixtures_have_the_same_bits_on_any_number_of_ranks():
    weights = torch.tensor([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0]], dtype=torch.float64)

    def mixed_on(world: int) -> dict[int, Tensor]:
        def work(fabric: Fabric) -> dict[int, Tensor]:
            return dict(numbered_uploads(fabric).mix("value", weights, torch.full((50,), 7.0)))

        return {client: value for answer in run_on_ranks(work, world) for client, value in answer.items()}

    one = mixed_on(1)
    values = [value_of(client) for client in CLIENTS]
    assert torch.equal(one[5], values[1])
    assert 9 not in one, "a row without weights has no mixture"
    for row, client in ((0, 2), (2, 6)):
        plain = sum(float(w) * v.double() for w, v in zip(weights[row], values, strict=True))
        torch.testing.assert_close(one[client].double(), plain, rtol=1e-6, atol=1e-12)
    for world in (2, 3, 5):
        other = mixed_on(world)
        assert other.keys() == one.keys()
        assert all(torch.equal(one[client], other[client]) for client in one)


def test_a_diverged_client_is_named_by_every_rank_that_mixes():
    def work(fabric: Fabric) -> str:
        uploads = numbered_uploads(fabric, diverged=5)
        try:
            list(uploads.mix("value", torch.eye(4, dtype=torch.float64), torch.empty(50)))
        except DivergedError as error:
            return str(error)
        return "no error"

    assert all("client 5 diverged in round 3" in text for text in run_on_ranks(work, 2))


@pytest.mark.parametrize("world", [1, 2])
def test_means_of_some_clients_and_of_values_made_on_the_server_by_hand(world):
    """Weights 1/6, 2/6, 3/6, values 6, 3, 1; client 2 does not send entry 1.

    Of clients 1 and 2: (2·3 + 3·1) / 5 = 1.8, and 3 where only client 1 sends. Of twice the values with the weights of
    the uploads: 2·(6 + 6 + 3)/6 = 5, with equal ones 2·10/3.
    """

    def work(fabric: Fabric) -> list[list[float]]:
        values = {0: 6.0, 1: 3.0, 2: 1.0}
        found = [Upload(c, {}, (c + 1) / 6, extra={"model": torch.full((2,), v)}) for c, v in values.items()]
        found[2].sends = {"vector": torch.tensor([True, False])}
        uploads = uploads_of(fabric, [[0, 1, 2]] if world == 1 else [[2], [0, 1]], found)
        doubled = {client: 2 * upload.extra["model"] for client, upload in uploads.local.items()}
        current = torch.zeros(2)
        means = uploads.mean_of([1, 2], "model", current), uploads.combine(doubled, current)
        return [mean.tolist() for mean in (*means, uploads.combine(doubled, current, 1 / 3))]

    for some, doubled, equal in run_on_ranks(work, world):
        assert some == pytest.approx([1.8, 3.0])
        assert doubled == pytest.approx([5.0, 5.0])
        assert equal == pytest.approx([20 / 3] * 2)


def test_a_mean_can_be_asked_for_once():
    uploads = uploads_of(one_rank(), [[0]], [Upload(0, {"vector": torch.ones(2)}, 1.0)])
    uploads.mean({"vector": torch.zeros(2)})
    with pytest.raises(RunError, match=r"^aggregate: uploads.mean can be called once in a round; keep its result$"):
        uploads.mean({"vector": torch.zeros(2)})


@pytest.mark.parametrize("asked", [["model"], ["vector", "prototypes"], []])
def test_a_mean_of_other_names_than_were_uploaded_is_refused(asked):
    uploads = uploads_of(one_rank(), [[0]], [Upload(0, {"vector": torch.ones(2)}, 1.0)])
    names = ", ".join(sorted(asked))
    message = rf"^aggregate: the clients uploaded vector, but uploads.mean was asked for {names}$"
    with pytest.raises(RunError, match=message):
        uploads.mean({name: torch.zeros(2) for name in asked})
