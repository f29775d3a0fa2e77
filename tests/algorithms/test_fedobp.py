"""FedOBP against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.errors import ConfigError
from tests.scalar import ScalarClients
from tests.toy import toy_loop

CONTRACT = [
    FedOBP(quantile=0.8),
    FedOBP(quantile=0.5, normalization="layer", scope="classifier", first_visit="initial", bn_buffers="local"),
]
LIKE_FEDAVG = [FedOBP(quantile=1.0)]
