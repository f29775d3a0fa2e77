"""ADMM for clients with least squares, in NumPy: Eq. 9-12 of the Learn2pFed paper, client by client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Arrays = Sequence[np.ndarray]


def plain_admm(x: Arrays, y: Arrays, start: Arrays, settings: dict[str, np.ndarray], cells: int) -> list[np.ndarray]:
    """Returns [v, z, alpha, w] after so many cells.

    Args:
        x, y: each client's features [n, d] and targets [n].
        start: v, z, alpha [clients, d] and w [d].
        settings: Lambda [clients, cells, d]; rho, eta, gamma, theta, p [clients, cells].
    """
    v, z, alpha, w = (np.array(part, dtype=np.float64) for part in start)
    clients, size = range(len(x)), len(w)
    for cell in range(cells):
        s = {name: value[:, cell] for name, value in settings.items()}
        for i in clients:
            alpha[i] = alpha[i] + s["theta"][i] * (z[i] - v[i] + w)
            right = s["rho"][i] * (w + z[i] + alpha[i]) + x[i].T @ y[i]
            v[i] = np.linalg.solve(x[i].T @ x[i] + s["rho"][i] * np.eye(size), right)
            penalty = np.diag(np.maximum(s["Lambda"][i], 0)) + s["eta"][i] * np.eye(size)
            z[i] = s["eta"][i] * np.linalg.solve(penalty, v[i] - w - alpha[i])
        shares = [s["p"][i] * s["gamma"][i] for i in clients]
        w = sum(shares[i] * (v[i] - z[i] - alpha[i]) for i in clients) / sum(shares)
    return [v, z, alpha, w]


def plain_loss(x: Arrays, y: Arrays, v: np.ndarray) -> float:
    """The sum of the clients' mean squared errors."""
    return float(sum(np.mean((x[i] @ v[i] - y[i]) ** 2) for i in range(len(x))))
