"""Whose heads help a client: a small quadratic program over statistics of the clients' features (FedPAC)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls
from torch import Tensor

from pfl_lightning.algorithms.parts.features import class_means


def moments(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Each class's mean feature times its share of the samples, h [C, D], and the variance V of such means. Float64."""
    z = z.double()
    means, counts = class_means(z, y, num_classes)
    n = counts.sum().clamp(min=1)
    h = means * (counts / n)[:, None]
    return h, (z.square().sum() / n - h.square().sum()) / n


def on_simplex(matrix: np.ndarray) -> np.ndarray:
    """The α ≥ 0 with Σα = 1 that minimises αᵀAα, A positive semidefinite.

    It is β / Σβ, β the minimiser of βᵀAβ − 2Σβ over β ≥ 0: their optimality conditions are the same up to scale. With
    A = RᵀR this is a non-negative least squares problem, solved exactly.
    """
    k = len(matrix)
    ridge = 1e-9 * np.trace(matrix) / k or 1.0  # a variance may be zero. A matrix of zeros has no preference
    root = cholesky(matrix + ridge * np.eye(k))
    beta, _ = nnls(root, solve_triangular(root, np.ones(k), trans="T"))
    return np.asarray(beta / beta.sum())


def head_weights(row: int, products: Tensor, variances: Tensor, least: float) -> Tensor:
    """The weights α [k] of the k heads for the client in this row; those below `least` count as zero.

    Minimises αᵀ(diag(V) + M)α with M_jl = ⟨h_i − h_j, h_i − h_l⟩, from ⟨h_j, h_l⟩ [k, k] and V [k], float64.
    """
    own = products[row]
    distances = products - own[:, None] - own[None, :] + own[row]
    alpha = on_simplex(distances.numpy() + np.diag(variances.numpy()))
    alpha[alpha < least] = 0
    return torch.from_numpy(alpha / alpha.sum())
