"""Partitions by their plain properties: who gets what, how often, how much, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfl_lightning.data.partitions import IID, Classes, ClientDirichlet, Dirichlet, Partition, Parts, Population, Shards
from pfl_lightning.data.partitions.deal import largest_remainder
from pfl_lightning.foundation.errors import ConfigError

BALANCED = Population(np.random.default_rng(5).permutation(np.arange(2000) % 10), 1500, 10, 20, 0.25)

EVERY = [
    Dirichlet(alpha=0.5),
    Dirichlet(alpha=0.1, capped=True),
    ClientDirichlet(alpha=0.3, train_size=50, test_size=10),
    Shards(),
    Shards(num_shards=60, per_client=2),
    Classes(2),
    Classes(2, train_size=40, test_size=12),
    IID(),
]
MERGED = [Dirichlet(alpha=0.5), Dirichlet(alpha=0.1, capped=True), Shards(), Classes(2), IID()]


def draw(partition: Partition, population: Population = BALANCED, seed: int = 0) -> Parts:
    return partition.draw(population, np.random.default_rng(seed))


def clients(parts: Parts) -> list[tuple[np.ndarray, np.ndarray]]:
    """(train, test) indices of every client, by a plain walk through the flat array."""
    out, at = [], 0
    for train, test in zip(parts.train_sizes, parts.test_sizes, strict=True):
        out.append((parts.indices[at : at + train], parts.indices[at + train : at + train + test]))
        at += train + test
    assert at == len(parts.indices)
    return out


@pytest.mark.parametrize("partition", EVERY, ids=repr)
def test_no_sample_twice_and_nobody_empty(partition: Partition) -> None:
    parts = draw(partition)
    assert len(np.unique(parts.indices)) == len(parts.indices)
    assert parts.indices.min() >= 0
    assert parts.indices.max() < 2000
    assert len(parts.train_sizes) == len(parts.test_sizes) == 20
    assert min(parts.train_sizes.min(), parts.test_sizes.min()) >= 1
    assert all(part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize("partition", MERGED, ids=repr)
def test_merged_partitions_use_every_sample_and_split_by_share(partition: Partition) -> None:
    parts = draw(partition)
    assert sorted(parts.indices) == list(range(2000))
    sizes = parts.train_sizes + parts.test_sizes
    assert (abs(parts.test_sizes - 0.25 * sizes) <= 0.5).all()
    smaller = draw(partition, BALANCED._replace(test_share=0.1))
    assert smaller.test_sizes.sum() < parts.test_sizes.sum()


@pytest.mark.parametrize("partition", EVERY, ids=repr)
def test_depends_on_the_seed_and_on_nothing_else(partition: Partition) -> None:
    np.random.seed(1)
    first = draw(partition, seed=3)
    np.random.seed(2)
    again, other = draw(replace(partition), seed=3), draw(partition, seed=4)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert len(first.indices) != len(other.indices) or (first.indices != other.indices).any()


def test_dirichlet_skew_grows_as_alpha_falls() -> None:
    def largest_label_share(alpha: float) -> float:
        owned = [np.concatenate(both) for both in clients(draw(Dirichlet(alpha, min_size=2)))]
        return float(np.mean([np.bincount(BALANCED.labels[own]).max() / len(own) for own in owned]))

    few, some, many = (largest_label_share(alpha) for alpha in (0.1, 1.0, 1000.0))
    assert few > some + 0.1 > many + 0.2
    assert many < 0.15


def test_dirichlet_redraws_until_everyone_has_enough() -> None:
    loose, strict = (draw(Dirichlet(0.1, min_size=min_size)) for min_size in (2, 25))
    assert (loose.train_sizes + loose.test_sizes).min() < 25
    assert (strict.train_sizes + strict.test_sizes).min() >= 25


def test_dirichlet_gives_up_and_says_what_to_change() -> None:
    with pytest.raises(ConfigError, match=r"^alpha: in 7 draws .*raise alpha, lower num_clients or lower min_size$"):
        draw(Dirichlet(0.01, min_size=50, max_redraws=7))
    with pytest.raises(ConfigError, match=r"^num_clients: 20 clients with at least 101 samples each need 2020"):
        draw(Dirichlet(min_size=101))


@pytest.mark.parametrize("capped", [False, True])
def test_dirichlet_cap_stops_at_the_even_share(capped: bool) -> None:
    def before_its_last_class(own: np.ndarray) -> int:
        counts = np.bincount(BALANCED.labels[own])
        return int(counts[: counts.nonzero()[0].max()].sum())

    held = [before_its_last_class(np.concatenate(both)) for both in clients(draw(Dirichlet(0.3, capped=capped)))]
    assert (max(held) < 2000 / 20) == capped


def test_client_dirichlet_has_exact_sizes_official_parts_and_one_mix() -> None:
    parts = draw(ClientDirichlet(alpha=0.5, train_size=30, test_size=10), BALANCED._replace(num_clients=10))
    assert set(parts.train_sizes) == {30}
    assert set(parts.test_sizes) == {10}
    for train, test in clients(parts):
        assert train.max() < 1500 <= test.min()
        mix, test_mix = (np.bincount(BALANCED.labels[part], minlength=10) / len(part) for part in (train, test))
        assert abs(mix - test_mix).max() < 1 / 10


def test_client_dirichlet_takes_other_classes_when_one_runs_out() -> None:
    # 20 x 75 = 1500: all training samples are needed, so the last clients must take what is left
    parts = draw(ClientDirichlet(alpha=0.1, train_size=75, test_size=10))
    assert sorted(np.concatenate([train for train, _ in clients(parts)])) == list(range(1500))
    with pytest.raises(ConfigError, match=r"^train_size: 20 clients x 76 samples need 1520, there are 1500; lower"):
        draw(ClientDirichlet(alpha=0.1, train_size=76, test_size=10))
    with pytest.raises(ConfigError, match=r"^test_size: .* there are 500"):
        draw(ClientDirichlet(alpha=0.1, train_size=10, test_size=26))


def test_client_dirichlet_splits_a_set_that_has_no_official_split() -> None:
    parts = draw(ClientDirichlet(alpha=0.5, train_size=60, test_size=30), BALANCED._replace(num_train=0))
    train, test = (np.concatenate([both[side] for both in clients(parts)]) for side in (0, 1))
    assert not set(train) & set(test)
    assert set(parts.train_sizes) == {60}
    assert set(parts.test_sizes) == {30}


def test_largest_remainder_by_hand() -> None:
    mix = np.array([[0.5, 0.3, 0.2], [0.34, 0.33, 0.33], [1.0, 0.0, 0.0]])
    assert largest_remainder(mix, 7).tolist() == [[4, 2, 1], [3, 2, 2], [7, 0, 0]]


def test_shards_have_few_labels_and_equal_sizes() -> None:
    parts = draw(Shards(num_shards=40, per_client=2))
    assert set(parts.train_sizes + parts.test_sizes) == {100}
    # a shard of 50 lies inside one class of 200
    assert all(len(np.unique(BALANCED.labels[np.concatenate(both)])) <= 2 for both in clients(parts))
    half = draw(Shards(num_shards=80, per_client=2))
    assert len(half.indices) == 1000


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (Shards(num_shards=2001), "num_shards: 2001 shards are more than the data set's 2000 samples"),
        (Shards(per_client=101), "num_shards: 2020 shards are more than"),
        (Shards(num_shards=39), "num_shards: 20 clients x 2 per client need 40 shards, there are 39"),
    ],
)
def test_shards_that_cannot_be_dealt(shards: Shards, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw(shards)


@pytest.mark.parametrize("sizes", [(None, None), (60, 20), (60, None)])
def test_classes_have_exactly_that_many_and_use_all_alike(sizes: tuple[int | None, int | None]) -> None:
    parts = draw(Classes(3, *sizes))
    used = np.zeros(10, dtype=int)
    for train, test in clients(parts):
        labels = np.unique(BALANCED.labels[train])
        assert len(labels) == 3
        assert set(BALANCED.labels[test]) <= set(labels)
        used[labels] += 1
    assert used.tolist() == [6] * 10
    if sizes[0] is not None:
        assert set(parts.train_sizes) == {60}
        assert set(parts.test_sizes) == {20}
        assert all(train.max() < 1500 <= test.min() for train, test in clients(parts))


def test_classes_that_cannot_be_dealt() -> None:
    with pytest.raises(ConfigError, match=r"^per_client: 11 is not allowed; use at most the 10 classes"):
        draw(Classes(11))
    with pytest.raises(ConfigError, match=r"^train_size: .*too few samples"):
        draw(Classes(1, train_size=90, test_size=5), BALANCED._replace(num_clients=16))


def test_iid_clients_are_equal() -> None:
    parts = draw(IID())
    assert set(parts.train_sizes + parts.test_sizes) == {100}
    mixes = [np.bincount(BALANCED.labels[np.concatenate(both)], minlength=10) for both in clients(parts)]
    assert np.min(mixes) > 0


@pytest.mark.parametrize("partition", [Dirichlet(), Shards(), Classes(2), IID(), ClientDirichlet(0.5, 2, 1)], ids=repr)
def test_more_clients_than_samples(partition: Partition) -> None:
    with pytest.raises(ConfigError, match="num_clients"):
        draw(partition, BALANCED._replace(num_clients=2001))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Dirichlet(0.0), "alpha: 0.0 is not allowed"),
        (lambda: Dirichlet(float("nan")), "alpha"),
        (lambda: Dirichlet(min_size=1), "min_size"),
        (lambda: Dirichlet(max_redraws=0), "max_redraws"),
        (lambda: ClientDirichlet(-1.0), "alpha"),
        (lambda: ClientDirichlet(train_size=0), "train_size"),
        (lambda: ClientDirichlet(test_size=0), "test_size"),
        (lambda: Shards(num_shards=0), "num_shards"),
        (lambda: Shards(per_client=0), "per_client"),
        (lambda: Classes(0), "per_client"),
        (lambda: Classes(2, 0), "train_size"),
        (lambda: Classes(2, None, 5), "test_size: train_size is missing"),
    ],
)
def test_bad_settings_name_their_key(make, key: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=f"^{key}"):
        make()


def test_a_hundred_thousand_clients_are_cheap() -> None:
    many = Population(np.arange(300_000) % 10, 200_000, 10, 100_000, 0.25)
    for partition in (IID(), Shards(), ClientDirichlet(0.5, 2, 1)):
        assert len(draw(partition, many).train_sizes) == 100_000
