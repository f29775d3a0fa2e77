"""Values that users keep in their modules are copied, references to parts of the model are not."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pfl_lightning.model.value_copy import copied


class Average:
    """An object that refers to a module and keeps values of its own."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.values = module, [torch.zeros(2)]


def test_objects_are_copied_and_keep_their_references_to_the_model():
    module = nn.Linear(2, 1)
    start = Average(module)
    memo: dict[int, Any] = {id(module): module}
    made, again = (copied(start, memo) for _ in range(2))
    made.values[0] += 1
    assert start.values[0].tolist() == [0, 0]
    assert made.module is module
    assert made is again, "two references to one object stay two references to one object"


@pytest.mark.parametrize("value", [[1], {"a": [1]}, {1}, deque([1], 3), (1, [2]), torch.ones(2), torch.Generator()])
def test_plain_values_are_copied(value):
    made = copied(value, {})
    assert made is not value
    assert type(made) is type(value)
    if not isinstance(value, torch.Generator):
        assert str(made) == str(value)


def test_a_generator_continues_where_it_is():
    start = torch.Generator().manual_seed(3)
    made = copied(start, {})
    assert torch.rand(2, generator=made).tolist() == torch.rand(2, generator=start).tolist()


def test_values_that_cannot_be_copied_and_data_sets_stay(tmp_path: Path):
    with (tmp_path / "log").open("w") as file:
        assert copied(file, {}) is file
        assert copied([file], {})[0] is file
    data = TensorDataset(torch.ones(2))
    assert copied(data, {}) is data
