"""Whole rounds of pFedFDA, lp-proj and FedALA against plain NumPy, written from the papers with no code of ours.

Two clients of unequal size, three features, three classes. The model is logits = W(s·x) + b: a body of one number and a
linear head. A batch has all samples of a client.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from pfl_lightning.algorithms import FedALA, LpProj, PFedFDA
from tests.helpers.points import opened, point_loop

LR = 0.1
RNG = np.random.default_rng(7)
LABELS = [np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0]), np.array([0, 0, 0, 0, 1, 1, 2])]
INPUTS = [RNG.normal(size=(len(y), 3)) + np.eye(3)[y] for y in LABELS]
SIZES = np.array([len(y) for y in LABELS])
SHARES = SIZES / SIZES.sum()


def federation(algorithm, **config):
    rows = [[(x.tolist(), int(y)) for x, y in zip(*own, strict=True)] for own in zip(INPUTS, LABELS, strict=True)]
    return point_loop(algorithm, rows, num_classes=3, lr=LR, **config)


def numbers(tensor):
    return tensor.detach().double().numpy().copy()


def slope(theta, x, y):
    """The gradient of the mean cross-entropy in theta = (s, W row by row, b)."""
    s, weight, bias = theta[0], theta[1:10].reshape(3, 3), theta[10:]
    logits = s * x @ weight.T + bias
    surplus = np.exp(logits - logits.max(1, keepdims=True))
    surplus = (surplus / surplus.sum(1, keepdims=True) - np.eye(3)[y]) / len(y)
    by_weight = surplus.T @ (s * x)
    return np.concatenate([[np.sum((surplus @ weight) * x)], by_weight.ravel(), surplus.sum(0)])


@pytest.mark.parametrize("p", [1, 2])
def test_lp_proj(p):
    """Two groups of two steps of θ, each group followed by a step of u; two rounds."""
    lam, rate, clip, beta = 0.7, 0.2, 0.3, 0.9
    algorithm = LpProj(lam=lam, dim=2, p=p, lr=rate, inner_steps=2, outer_steps=2, beta=beta, clip=clip)
    loop = federation(algorithm)
    rows = numbers(algorithm.projection(loop.engine.client))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    thetas, u = [numbers(loop.server.initial) for _ in SIZES], np.zeros(2)

    def gap(own_u, theta):
        difference = own_u - rows @ theta
        return np.sign(difference) if p == 1 else difference

    for _ in range(2):
        loop.round()
        uploaded = []
        for i, (x, y) in enumerate(zip(INPUTS, LABELS, strict=True)):
            own_u = u.copy()
            for _ in range(2):
                for _ in range(2):
                    gradient = slope(thetas[i], x, y)
                    gradient = gradient * min(1, clip / np.linalg.norm(gradient))
                    thetas[i] = thetas[i] - LR * (gradient - lam * rows.T @ gap(own_u, thetas[i]))
                own_u = own_u - rate * lam * gap(own_u, thetas[i])
            uploaded.append(own_u)
        u = (1 - beta) * u + beta * SHARES @ uploaded
        np.testing.assert_allclose(numbers(loop.server.memory["u"]), u, atol=1e-5)
    for i, theta in enumerate(thetas):
        np.testing.assert_allclose(numbers(opened(loop, i).theta), theta, atol=1e-5)


def test_fed_ala():
    """A first round is FedAvg's. In the second, W takes three steps from 1 before the training, in a third one step."""
    eta = 4.0
    loop = federation(FedALA(eta=eta, share=1.0, max_epochs=3))
    w = numbers(loop.server.initial)
    own, mixture = [None] * 2, [np.ones(12) for _ in SIZES]
    for steps in (0, 3, 1):
        loop.round()
        for i, (x, y) in enumerate(zip(INPUTS, LABELS, strict=True)):
            theta = w.copy()
            for _ in range(steps):
                theta[1:] = own[i][1:] + (w[1:] - own[i][1:]) * mixture[i]
                mixture[i] = np.clip(mixture[i] - eta * slope(theta, x, y)[1:] * (w - own[i])[1:], 0, 1)
            if steps:
                theta[1:] = own[i][1:] + (w[1:] - own[i][1:]) * mixture[i]
            own[i] = theta - LR * slope(theta, x, y)
        w = SHARES @ own
        np.testing.assert_allclose(numbers(loop.server.vector), w, atol=1e-5)
    assert min(m.min() for m in mixture) < 0.9, "W must have moved"


def shrink(covariance):
    return (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / 3 * np.eye(3)


def classifier(means, covariance, priors):
    weight = np.linalg.solve(shrink(covariance), means.T).T
    return weight, np.log(priors) - 0.5 * np.sum(means * weight, axis=1)


def gaussians(z, y, fallback, ridge):
    means = np.stack([z[y == c].mean(0) if np.sum(y == c) > 2 else fallback[c] for c in range(3)])
    scatter = sum(np.outer(row, row) for row in z - means[y])
    return means, scatter / (len(z) - 1) + 1e-4 + ridge * np.eye(3)


def test_pfedfda():
    """Two epochs of the body under the fixed head, then β, the mixture, and the mean of the mixtures. The second client
    has one sample of class 2, seen twice, which is too few for a mean of its own.
    """
    ridge, seen = 0.05, []

    class Noting(PFedFDA):
        """pFedFDA that notes the order of the features, which decides the folds of its cross-validation."""

        def personal(self, client, server, z, y):
            mixed = super().personal(client, server, z, y)
            seen.append((client.id, numbers(z), y.numpy().copy(), numbers(client.memory["beta"])))
            return mixed

    loop = federation(Noting(ridge=ridge), local_epochs=2)
    means, covariance = numbers(loop.server.memory["means"]), np.eye(3)
    s = numbers(loop.server.vector)[0]
    loop.round()
    visits = {client: rest for client, *rest in seen if len(rest[0]) == 2 * SIZES[client]}
    bodies, mixed = [], []
    for i, (x, y) in enumerate(zip(INPUTS, LABELS, strict=True)):
        priors = np.bincount(y, minlength=3) / len(y) + 1e-4
        priors /= priors.sum()
        weight, bias = classifier(means, covariance, priors)
        theta, features = np.concatenate([[s], weight.ravel(), bias]), []
        for _ in range(2):
            features.append(theta[0] * x)
            theta[0] -= LR * slope(theta, x, y)[0]
        z, order, beta = visits[i]
        both = np.concatenate(features)
        for column in range(3):  # the same features, in another order
            np.testing.assert_allclose(np.sort(z[:, column]), np.sort(both[:, column]), atol=1e-5)
        place = np.array([np.sum(order[:n] == label) for n, label in enumerate(order)])
        folds = [np.flatnonzero(place % 2 == half) for half in (0, 1)]

        def loss(b, z=z, order=order, folds=folds, priors=priors):
            total = 0.0
            for a, rest in (folds, folds[::-1]):
                own_means, own_covariance = gaussians(z[a], order[a], means, ridge)
                at = b[0] * own_means + (1 - b[0]) * means, b[1] * own_covariance + (1 - b[1]) * covariance
                weight, bias = classifier(*at, priors)
                logits = z[rest] @ weight.T + bias
                total += np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rest)), order[rest]])
            return total

        best = min(
            (minimize(loss, start, method="Nelder-Mead", bounds=[(0, 1)] * 2) for start in ((0.5, 0.5), (0.9, 0.1))),
            key=lambda found: found.fun,
        )
        assert loss(beta) <= best.fun + 1e-3
        own_means, own_covariance = gaussians(z, order, means, ridge)
        bodies.append(theta[0])
        mixed.append(
            (beta[0] * own_means + (1 - beta[0]) * means, beta[1] * own_covariance + (1 - beta[1]) * covariance)
        )
    np.testing.assert_allclose(numbers(loop.server.vector)[0], SHARES @ bodies, atol=1e-5)
    expected = [sum(share * pair[k] for share, pair in zip(SHARES, mixed, strict=True)) for k in (0, 1)]
    np.testing.assert_allclose(numbers(loop.server.memory["means"]), expected[0], atol=1e-5)
    upper = expected[1][np.triu_indices(3)]
    np.testing.assert_allclose(numbers(loop.server.memory["covariance"]), upper, atol=1e-5)
