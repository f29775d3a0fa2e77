"""Classes as Gaussians with one covariance: estimating them, mixing them, and the classifier they make (pFedFDA)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, softmax

from pfl_lightning.algorithms.parts.features import class_means

SHRINKAGE = 1e-4
"""Share of the covariance replaced by a multiple of the identity, so that it can be inverted."""

FEW = 2
"""A class with this many samples or fewer cannot tell its own mean."""


class Gaussians(NamedTuple):
    """Features of class c are N(means[c], covariance)."""

    means: Tensor
    """[C, D]"""
    covariance: Tensor
    """[D, D]"""

    def mixed(self, other: Gaussians, beta: Tensor) -> Gaussians:
        """β of these, 1 − β of `other`. beta [2]: for the means, for the covariance."""
        means = beta[0] * self.means + (1 - beta[0]) * other.means
        return Gaussians(means, beta[1] * self.covariance + (1 - beta[1]) * other.covariance)


def estimate(z: Tensor, y: Tensor, fallback: Gaussians, ridge: float) -> Gaussians:
    """The Gaussians of features z [N, D] with labels y. A class with `FEW` samples or fewer has the fallback's mean.

    The covariance is scatter around these means / (n − 1) + 1e-4 in every entry + ridge·I, as the authors compute it.
    """
    means, counts = class_means(z, y, len(fallback.means))
    means = torch.where(counts[:, None] > FEW, means, fallback.means)
    centred = z - means[y]
    covariance = centred.T @ centred / max(1, len(z) - 1) + 1e-4
    covariance.diagonal().add_(ridge)
    return Gaussians(means, covariance)


def bayes_classifier(gaussians: Gaussians, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [C, D] and bias [C] of the best linear classifier for these Gaussians and class shares."""
    weight = torch.cholesky_solve(gaussians.means.T, torch.linalg.cholesky(shrunk(gaussians.covariance))).T
    return weight, priors.log() - 0.5 * (gaussians.means * weight).sum(1)


def shrunk(covariance: Tensor) -> Tensor:
    """The covariance, a little of it replaced by a multiple of the identity with the same trace."""
    level = SHRINKAGE * covariance.diagonal().mean()
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return (1 - SHRINKAGE) * covariance + level * identity


def choose_beta(z: Tensor, y: Tensor, common: Gaussians, priors: Tensor, ridge: float, single: bool) -> Tensor:
    """How much to trust one's own estimate, β [2] in [0, 1]. These values classify one half of the samples best when
    the other half makes the estimate, and vice versa. L-BFGS from 0.5. Zero when no class has two samples.
    """
    folds = halves(y)
    if folds is None:
        return torch.zeros(2).to(z)
    parts = [(estimate(z[a], y[a], common, ridge), z[b], y[b]) for a, b in (folds, folds[::-1])]

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        beta = torch.from_numpy(np.broadcast_to(x, 2).copy()).to(z)
        both = [mixture_loss(own, common, beta, priors, test, labels) for own, test, labels in parts]
        value, slopes = both[0][0] + both[1][0], (both[0][1] + both[1][1]).double().cpu().numpy()
        return float(value), slopes.sum(keepdims=True) if single else slopes

    start = np.full(1 if single else 2, 0.5)
    bounds = [(0.0, 1.0)] * len(start)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 10})
    return torch.from_numpy(np.broadcast_to(found.x, 2).copy()).to(z)


def mixture_loss(
    own: Gaussians, common: Gaussians, beta: Tensor, priors: Tensor, z: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of the mixture's classifier on these samples, and its slopes [2] in the two betas.

    The slopes go forward through the formulas: one Cholesky factor serves for all. Of W = Σ⁻¹μ, dW = Σ⁻¹dμ for
    the means and −Σ⁻¹ dΣ W for the covariance.
    """
    mixed = own.mixed(common, beta)
    factor = torch.linalg.cholesky(shrunk(mixed.covariance))
    mean, d_mean = mixed.means.T, (own.means - common.means).T
    weight, by_mean = torch.cholesky_solve(torch.cat([mean, d_mean], 1), factor).chunk(2, dim=1)
    by_covariance = -torch.cholesky_solve(shrunk(own.covariance - common.covariance) @ weight, factor)
    logits = z @ weight + priors.log() - 0.5 * (mean * weight).sum(0)
    d_logits = torch.stack(
        [z @ by_mean - (d_mean * weight).sum(0), z @ by_covariance - 0.5 * (mean * by_covariance).sum(0)]
    )
    surplus = (softmax(logits, 1) - one_hot(y, len(priors))) / len(y)
    return cross_entropy(logits, y), (d_logits * surplus).sum((1, 2))


def halves(y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Two halves of the samples as indices, each class dealt in turn. Classes with a single sample are left out."""
    order = torch.argsort(y, stable=True)
    counts = torch.bincount(y)
    place = torch.arange(len(y), device=y.device) - (counts.cumsum(0) - counts)[y[order]]  # within the class
    usable = counts[y[order]] >= 2
    if not usable.any():
        return None
    return order[usable & (place % 2 == 0)], order[usable & (place % 2 == 1)]
