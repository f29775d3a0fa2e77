"""A simplex of classifiers, and where on it each client belongs (FLOCO)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

WHOLE_SIMPLEX = -1.0
"""The radius that stands for the whole simplex."""
LEAST_DISTANCE = 1e-4


class SimplexHead(nn.Module):
    """A linear layer whose weight is Σ α_m W_m: the M endpoints and one bias are its parameters.

    In training α is drawn afresh for each batch: uniformly from the simplex or, once `radius` is not `WHOLE_SIMPLEX`,
    around `center`. Tests are made at `center`. Both are buffers, so they have a place in the flat model.

    Args:
        head: the layer to replace. A simplex of one point is that layer itself. More endpoints start from
            Xavier's normal distribution, each its own draw, since equal ones would never part.
        endpoints: M.
    """

    center: Tensor
    radius: Tensor

    def __init__(self, head: nn.Linear, endpoints: int) -> None:
        super().__init__()
        self.endpoints = nn.Parameter(head.weight.detach().clone().repeat(endpoints, 1, 1))  # [M, C, D]
        if endpoints > 1:
            for endpoint in self.endpoints:
                nn.init.xavier_normal_(endpoint)
        self.bias = head.bias
        self.register_buffer("center", torch.full((endpoints,), 1 / endpoints))
        self.register_buffer("radius", torch.tensor(WHOLE_SIMPLEX))
        self._whole = True

    @override
    def train(self, mode: bool = True) -> SimplexHead:
        if mode:  # read once for a whole training: at every step the host would wait for a GPU
            self._whole = bool(self.radius < 0)
        return super().train(mode)

    @override
    def forward(self, z: Tensor) -> Tensor:
        alpha = self.draw() if self.training else self.center
        return linear(z, torch.tensordot(alpha, self.endpoints, 1), self.bias)

    @torch.no_grad()
    def draw(self) -> Tensor:
        """A point α [M] to train at. Around a center it may leave the simplex a little, as the authors' does."""
        direction = torch.empty_like(self.center).exponential_()
        if self._whole:
            return direction / direction.sum()
        sign = torch.empty_like(direction).bernoulli_(0.5).mul_(2).sub_(1)
        distance = self.radius * torch.rand_like(self.radius)
        return self.center + distance * sign * direction / direction.sum()


def centers(products: Tensor, endpoints: int) -> Tensor:
    """Where on the simplex each client belongs, float64 [N, M], from the products of their vectors, float64 [N, N].

    Principal components to M dimensions, then the projection on the simplex that keeps the clients furthest apart: of
    1000 sizes of simplex the one with the lowest Riesz energy.
    """
    points = principal_components(products, endpoints)
    if len(points) < 2:
        return torch.full_like(points, 1 / endpoints)
    candidates = (project(points, float(size)) for size in torch.linspace(1e-4, 1, 1000, dtype=torch.float64))
    return min(candidates, key=riesz_energy)


def principal_components(products: Tensor, dimensions: int) -> Tensor:
    """The scores [N, dimensions] of N vectors with these products ⟨v_i, v_j⟩. Axes that N points do not fill are zero.

    The sign of an axis is arbitrary: the entry of largest size is made positive.
    """
    count = len(products)
    centring = torch.eye(count, dtype=products.dtype) - 1 / count
    values, vectors = torch.linalg.eigh(centring @ products @ centring)
    order = values.argsort(descending=True)[:dimensions]
    scores = vectors[:, order] * values[order].clamp(min=0).sqrt()
    scores = scores * torch.where(scores.gather(0, scores.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)
    return torch.nn.functional.pad(scores, (0, dimensions - scores.shape[1]))


def project(points: Tensor, size: float) -> Tensor:
    """Each row's nearest point of {x ≥ 0, Σx = size}, divided by its sum."""
    ordered = points.sort(dim=1, descending=True).values
    excess = ordered.cumsum(1) - size
    count = torch.arange(1, points.shape[1] + 1, dtype=points.dtype)
    active = (ordered - excess / count > 0).sum(1, keepdim=True)
    threshold = excess.gather(1, active - 1) / active
    projected = (points - threshold).clamp(min=0)
    return projected / projected.sum(1, keepdim=True)


def riesz_energy(points: Tensor) -> float:
    """Log of the mean over pairs of 1 / distance²: low when points [N, M] are well spread."""
    distances = torch.nn.functional.pdist(points).clamp(min=LEAST_DISTANCE)
    return float(distances.pow(-2).mean().log())
