"""Noisy points of third-order polynomials, of which clients share the lowest coefficients: Learn2pFed's regression."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from typing_extensions import override

from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.errors import require

BASE = (0.0, -6.0, 18.0, -12.0)
OFFSET = 10.0


class Polynomial(FederatedData):
    """Each client has a polynomial a_0 + a_1 x + a_2 x² + a_3 x³: [0, −6, 18, −12], its highest coefficients moved.

    The points x lie uniformly in [0, 1]. Training targets are noisy, test targets are the curve itself.

    Args:
        setting: how many coefficients are a client's own, each moved by its own U(−10, 10): 1, 2 or 3, the highest.
        num_clients: number of clients.
        points: number of points of all clients together; each has the same number.
        noise: standard deviation of the noise.
        segments: whether a client has one segment of [0, 1], as in the paper, or points from all of it. From a tenth of
            the curve alone no method can tell which coefficient is a client's own.
        test_share: share of each client's points that it is tested on.
        seed: for the data alone; by default the run's.
    """

    spec = DataSpec((1,), 1)

    def __init__(
        self,
        setting: Literal[1, 2, 3] = 1,
        num_clients: int = 10,
        points: int = 1000,
        noise: float = 0.1,
        segments: bool = True,
        test_share: float = 0.2,
        seed: int | None = None,
    ) -> None:
        super().__init__(num_clients, seed)
        require(setting in (1, 2, 3), "setting", setting, "1, 2 or 3")
        require(noise >= 0, "noise", noise, "a number >= 0")
        require(0 < test_share < 1, "test_share", test_share, "a number between 0 and 1")
        require(points >= 2 * num_clients, "points", points, f"at least {2 * num_clients}: two for each client")
        self.setting, self.points, self.noise, self.segments = setting, points, noise, segments
        self.test_share = test_share

    @property
    @override
    def name(self) -> str:
        return f"Polynomial_{self.setting}"

    @property
    def shared(self) -> np.ndarray:
        """Which coefficients all clients share, the lowest first. # bool [4]"""
        return np.arange(len(BASE)) < len(BASE) - self.setting

    @override
    def setup(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed if self.seed is None else self.seed, self.setting])
        super().setup(seed)

    @override
    def load(self) -> Samples:
        rng, each = self._rng, self.points // self.num_clients
        self.coefficients = np.tile(BASE, (self.num_clients, 1))
        self.coefficients[:, ~self.shared] += rng.uniform(-OFFSET, OFFSET, (self.num_clients, self.setting))
        x = rng.uniform(0, 1, each * self.num_clients)
        x = (np.sort(x) if self.segments else x).reshape(self.num_clients, each)
        x = rng.permuted(x, axis=1)
        y = np.einsum("cd,cnd->cn", self.coefficients, x[..., None] ** np.arange(len(BASE)))
        train = each - self._test_size(each)
        y[:, :train] += rng.normal(0, self.noise, (self.num_clients, train))
        inputs, targets = (torch.from_numpy(a.reshape(-1, 1)).float() for a in (x, y))
        return Samples(inputs, targets, 0)

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        each = len(samples.y) // self.num_clients
        test = np.full(self.num_clients, self._test_size(each), dtype=np.int64)
        return Parts(np.arange(len(samples.y)), each - test, test)

    def _test_size(self, each: int) -> int:
        return min(max(1, round(self.test_share * each)), each - 1)
