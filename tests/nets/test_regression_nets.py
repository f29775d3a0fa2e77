"""LSTM and Powers."""

from __future__ import annotations

import pytest
import torch

from pfl_lightning.data import DataSpec
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets import LSTM, Powers


def test_powers_is_the_polynomial():
    net = Powers(DataSpec((1,), 1))
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0, -6.0, 18.0, -12.0]]))  # type: ignore[union-attr]
    assert net(torch.tensor([[0.5]])).item() == 1 - 3 + 4.5 - 1.5
    assert net.head.bias is None  # type: ignore[union-attr]


def test_lstm_reads_the_window_in_order():
    torch.manual_seed(0)
    net = LSTM(DataSpec((4,), 2), hidden=5, layers=1)
    x = torch.randn(3, 4)
    states, _ = net.body.lstm(x[..., None])  # type: ignore[union-attr,operator]
    assert torch.equal(net(x), net.head(states[:, -1]))
    assert not torch.allclose(net(x), net(x.flip(1)))
    assert LSTM(DataSpec((4, 3), 1))(torch.zeros(2, 4, 3)).shape == (2, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LSTM(DataSpec((1, 28, 28), 10)), "LSTM needs windows of a time series"),
        (lambda: LSTM(DataSpec((3,), 1), hidden=0), "task.net.hidden: 0 is not allowed"),
        (lambda: Powers(DataSpec((3,), 1)), "Powers needs one number as input"),
        (lambda: Powers(DataSpec((1,), 1), order=-1), "task.net.order: -1 is not allowed"),
    ],
)
def test_unsuitable_data_or_options_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
