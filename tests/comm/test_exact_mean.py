"""The exact mean on one rank: the order of clients does not matter, and every number can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pfl_lightning.comm.exact_mean import LIMIT, ExactMean, is_finite
from tests.helpers.uploads import adversarial_uploads


def vectors(size: int) -> ExactMean:
    return ExactMean({"vector": torch.zeros(size)})


def add(total: ExactMean, value: Tensor, weight: float, sends: list[bool] | None = None) -> bool:
    return total.add({"vector": value}, weight, {} if sends is None else {"vector": torch.tensor(sends)})


def mean(total: ExactMean, current: Tensor | None = None) -> Tensor:
    size = total.sizes["vector"]
    return total.result({"vector": torch.zeros(size) if current is None else current})["vector"]


def test_the_order_of_clients_does_not_matter():
    results = []
    for order in (range(6), reversed(range(6)), [3, 0, 5, 1, 4, 2]):
        uploads, total = adversarial_uploads(partial=True), vectors(300)
        for index in order:
            assert total.add(uploads[index].values, uploads[index].weight, uploads[index].sends)
        results.append(mean(total))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_equal_values_stay_exactly_equal_with_any_weights():
    value, total = torch.tensor([0.1, -3.7e-5, 1234.567]), vectors(3)
    for weight in (1 / 3, 1 / 7, 1 - 1 / 3 - 1 / 7):
        add(total, value, weight)
    assert torch.equal(mean(total), value)


@pytest.mark.parametrize("partial_first", [False, True])
def test_a_weighted_mean_by_hand(partial_first):
    """n = (1, 3), models 0 and 4: (1·0 + 3·4) / 4 = 3; only the first client sends entry 1: 8."""
    total = vectors(2)
    clients = [(torch.tensor([0.0, 8.0]), 0.25, None), (torch.tensor([4.0, 5.0]), 0.75, [True, False])]
    for value, weight, sends in reversed(clients) if partial_first else clients:
        add(total, value, weight, sends)
    assert mean(total).tolist() == [3.0, 8.0]


def test_an_entry_that_nobody_sends_keeps_its_value():
    total = vectors(2)
    add(total, torch.tensor([1.0, 2.0]), 1.0, [True, False])
    assert mean(total, torch.tensor([7.0, 7.0])).tolist() == [1.0, 7.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2 * LIMIT])
def test_a_value_that_cannot_be_averaged_is_refused(bad):
    assert not add(vectors(2), torch.tensor([1.0, bad]), 1.0)


@pytest.mark.parametrize("values", [[], [0.0], [3e38, -3e38]])
def test_finite_values_are_finite(values):
    assert is_finite(torch.tensor(values))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_seen(bad):
    assert not is_finite(torch.tensor([1.0, bad, -1.0]))


def test_the_largest_allowed_values_do_not_overflow():
    total = vectors(2)
    for _ in range(1000):
        assert add(total, torch.tensor([LIMIT, -LIMIT]), 1 / 1000)
    assert mean(total).tolist() == [LIMIT, -LIMIT]


def test_a_value_that_is_not_sent_may_be_anything():
    total = vectors(2)
    assert add(total, torch.tensor([1.0, math.nan]), 1.0, [True, False])
    assert mean(total).tolist() == [1.0, 0.0]


def test_several_names_are_one_tensor_of_integers():
    current = {"vector": torch.zeros(4), "prototypes": torch.zeros(2, 3)}
    total = ExactMean(current)
    total.add({"vector": torch.ones(4), "prototypes": torch.arange(6.0).view(2, 3)}, 1.0, {})
    means = total.result(current)
    assert torch.equal(means["prototypes"], torch.arange(6.0).view(2, 3))
    assert torch.equal(means["vector"], torch.ones(4))
    assert (total.sums.dtype, len(total.sums)) == (torch.int64, 2 + 4 + 6)
