"""Noisy points of third-order polynomials. All clients have the same lowest coefficients: Learn2pFed's regression."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from typing_extensions import override

from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Ints, Parts
from pfl_lightning.foundation.errors import require

BASE = (0.0, -6.0, 18.0, -12.0)
OFFSET = 10.0


class Polynomial(FederatedData):
    """Each client has its own polynomial a_0 + a_1 x + a_2 x² + a_3 x³: [0, −6, 18, −12] with shifted coefficients.

    The points x are uniform in [0, 1]. Training targets are noisy, and test targets lie on the curve.

    Args:
        setting: number of coefficients that differ between clients: 1, 2 or 3, counted from the highest power.
        num_clients: number of clients.
        points: number of points of all clients together.
        noise: standard deviation of the noise.
        segments: true gives each client one segment of [0, 1] with as many points as every other, as the paper says.
            unequal draws the sizes of the segments in proportion to uniform numbers, as the authors' code does. false
            gives each client points from all of [0, 1]. From a tenth of the curve no method can tell which
            coefficients differ.
        test_share: fraction of each client's points to test on.
        seed: seed of the data. null takes the seed of the run.
        offset: "client" shifts all coefficients of a client that differ by one number from U(−10, 10), as the paper
            does. "coefficient" shifts each of them by its own number.
        validation_share: fraction of each client's training points kept for validation.
        held_out_clients: fraction of the clients that never take part in training.
    """

    spec = DataSpec((1,), 1)

    def __init__(
        self,
        setting: Literal[1, 2, 3] = 1,
        num_clients: int = 10,
        points: int = 1000,
        noise: float = 0.1,
        segments: bool | Literal["unequal"] = True,
        test_share: float = 0.2,
        seed: int | None = None,
        offset: Literal["client", "coefficient"] = "client",
        validation_share: float = 0.0,
        held_out_clients: float = 0.0,
    ) -> None:
        super().__init__(num_clients, seed, validation_share, held_out_clients)
        require(setting in (1, 2, 3), "setting", setting, "1, 2 or 3")
        require(noise >= 0, "noise", noise, "a number >= 0")
        require(segments in (True, False, "unequal"), "segments", segments, "true, false or unequal")
        require(0 < test_share < 1, "test_share", test_share, "a number between 0 and 1")
        require(points >= 2 * num_clients, "points", points, f"at least {2 * num_clients}: two for each client")
        require(offset in ("client", "coefficient"), "offset", offset, "client or coefficient")
        self.setting, self.points, self.noise, self.segments = setting, points, noise, segments
        self.test_share, self.offset = test_share, offset

    @property
    @override
    def name(self) -> str:
        return f"Polynomial_{self.setting}"

    @property
    def shared(self) -> np.ndarray:
        """True for the coefficients that all clients share, lowest power first. # bool [4]"""
        return np.arange(len(BASE)) < len(BASE) - self.setting

    @override
    def setup(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed if self.seed is None else self.seed, self.setting])
        super().setup(seed)

    @override
    def load(self) -> Samples:
        rng, offsets = self._rng, 1 if self.offset == "client" else self.setting
        self.coefficients = np.tile(BASE, (self.num_clients, 1))
        self.coefficients[:, ~self.shared] += rng.uniform(-OFFSET, OFFSET, (self.num_clients, offsets))
        self._client_sizes = self._draw_sizes(rng)
        x = self._draw_points(rng)
        client = np.arange(self.num_clients).repeat(self._client_sizes)
        y = np.einsum("nd,nd->n", self.coefficients[client], x[:, None] ** np.arange(len(BASE)))
        place = np.arange(len(x)) - (np.cumsum(self._client_sizes) - self._client_sizes)[client]
        train = place < (self._client_sizes - self._test_sizes())[client]
        y[train] += rng.normal(0, self.noise, int(train.sum()))
        inputs, targets = (torch.from_numpy(values[:, None]).float() for values in (x, y))
        return Samples(inputs, targets, 0)

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        test = self._test_sizes()
        return Parts(np.arange(len(samples.y)), self._client_sizes - test, test)

    def _draw_sizes(self, rng: np.random.Generator) -> Ints:
        """Number of points of each client, at least two. # [num_clients]"""
        if self.segments != "unequal":
            return np.full(self.num_clients, self.points // self.num_clients, dtype=np.int64)
        share = rng.uniform(0, 1, self.num_clients)
        sizes: Ints = np.maximum(2, np.floor(share / share.sum() * self.points)).astype(np.int64)
        return sizes

    def _draw_points(self, rng: np.random.Generator) -> np.ndarray:
        """The points client after client, in random order within each client."""
        x = rng.uniform(0, 1, self._client_sizes.sum())
        if self.segments:
            x.sort()
        if self.segments == "unequal":
            return np.concatenate([rng.permutation(part) for part in np.split(x, np.cumsum(self._client_sizes)[:-1])])
        return rng.permuted(x.reshape(self.num_clients, -1), axis=1).ravel()

    def _test_sizes(self) -> Ints:
        wanted = np.rint(self.test_share * self._client_sizes).astype(np.int64)
        sizes: Ints = np.clip(wanted, 1, self._client_sizes - 1)
        return sizes
