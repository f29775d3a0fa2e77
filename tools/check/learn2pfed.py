"""Learn2pFed's regression in plain NumPy, with derivatives written by hand: an independent check of Tables I and II.

All rows, settings and trials are computed together, which takes about a minute for both tables. Nothing of the method
is shared with `pfl_lightning`; only the data and the initial model come from there.

    python tools/check/learn2pfed.py --table 2 --seeds 0 1 2 3 4 --out table2_numpy.csv
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from lightning.fabric import Fabric
from numpy.typing import NDArray
from torch.optim import Adam

from pfl_lightning import FederatedFabricLoop, LoopConfig
from pfl_lightning.algorithms import Learn2pFed
from pfl_lightning.data import Polynomial
from pfl_lightning.nets import Powers
from pfl_lightning.tasks import Regression

Floats = NDArray[np.float64]
NAMES = ("Lambda", "rho", "eta", "gamma", "theta", "p")
STEPS = NAMES[1:]
CLIENTS, D, CELLS, LR, EPS, SMALLEST = 10, 4, 10, 0.01, 1e-8, 1e-3


@dataclass(frozen=True)
class Row:
    """A row of a table: which settings are learned, and the initial Λ."""

    label: str
    learned: tuple[str, ...]
    initial_lambda: float = 1.0
    learn_share: float = 0.0


TABLES = {
    "1": [Row("Learn2pFed", NAMES), Row("Learn2pFed, no exchange", STEPS, 0.0)],
    "held-out": [
        Row("Λ by held-out points, share 0.5", NAMES, learn_share=0.5),
        Row("Λ by held-out points, share 0.2", NAMES, learn_share=0.2),
        Row("no exchange, settings by held-out points, share 0.5", STEPS, 0.0, learn_share=0.5),
    ],
    "2": [
        Row("none", ()),
        Row("Λ", ("Lambda",)),
        Row("p", ("p",)),
        Row("Λ, p", ("Lambda", "p")),
        Row("ρ, η, γ, θ", ("rho", "eta", "gamma", "theta")),
        Row("ρ", ("rho",)),
        Row("η", ("eta",)),
        Row("γ", ("gamma",)),
        Row("θ", ("theta",)),
        Row("p, ρ, η, γ, θ", STEPS),
        Row("Λ, ρ, η, γ, θ", ("Lambda", "rho", "eta", "gamma", "theta")),
        Row("all", NAMES),
    ],
}


class Trial(NamedTuple):
    """The data of one setting and seed, as powers of x."""

    setting: int
    seed: int
    train: list[tuple[Floats, Floats]]
    test: list[tuple[Floats, Floats]]
    initial: Floats


class Past(NamedTuple):
    """What the way back needs of a cell."""

    v: Floats
    z: Floats
    w: Floats
    t: Floats
    v_next: Floats
    u: Floats
    c: Floats
    r: Floats
    w_next: Floats


def load_trial(setting: int, seed: int) -> Trial:
    """The data and the initial model that a run with this seed has."""
    data = Polynomial(setting=setting)
    data.setup(seed)
    task = Regression(Powers, lambda p: Adam(p, lr=0.01))
    fabric = Fabric(accelerator="cpu", devices=1)
    loop = FederatedFabricLoop(fabric, task, Learn2pFed(), data, LoopConfig(1), seed=seed)

    def points(indices: object) -> tuple[Floats, Floats]:
        x, y = data.batch(indices, loop.server.initial.device)  # type: ignore[arg-type]
        powers = np.concatenate([(x**k).double().numpy() for k in range(D)], 1)  # float32, as the net computes them
        return powers, y.double().numpy()[:, 0]

    train = [points(data.train_indices(c)) for c in range(CLIENTS)]
    test = [points(data.test_indices(c)) for c in range(CLIENTS)]
    return Trial(setting, seed, train, test, loop.server.initial.double().numpy())


def apply(a: Floats, b: Floats) -> Floats:
    """A matrix times a vector, for every client. # [..., D, D], [..., D]"""
    return np.einsum("...ij,...j->...i", a, b)


def forward(
    s: dict[str, Floats], cell: int, at: Sequence[Floats], gram: Floats, moment: Floats
) -> tuple[list[Floats], Past]:
    """One cell, Eq. 9-12. Variables are [batch, clients, D], w is [batch, 1, D]."""
    v, z, alpha, w = at
    here = {name: s[name][:, :, cell] for name in NAMES}
    rho, eta, theta = (here[name] for name in ("rho", "eta", "theta"))
    alpha = alpha + theta * (z - v + w)
    t = w + z + alpha
    v_next = np.linalg.solve(gram + rho[..., None] * np.eye(D), (rho * t + moment)[..., None])[..., 0]
    u = v_next - w - alpha
    c = eta / (np.maximum(here["Lambda"], 0) + eta)
    share = here["p"] * here["gamma"]
    r = v_next - c * u - alpha
    w_next = (share * r).sum(1, keepdims=True) / share.sum(1, keepdims=True)
    return [v_next, c * u, alpha, w_next], Past(v, z, w, t, v_next, u, c, r, w_next)


def back(
    s: dict[str, Floats], cell: int, past: Past, bars: Sequence[Floats], gram: Floats, g: dict[str, Floats]
) -> list[Floats]:
    """The way back through one cell: adds to the gradients `g` and returns those of v, z, alpha and w."""
    here = {name: s[name][:, :, cell] for name in NAMES}
    lam, eta, rho, theta = np.maximum(here["Lambda"], 0), here["eta"], here["rho"], here["theta"]
    dv, dz, da, dw = bars
    share = here["p"] * here["gamma"]
    total = share.sum(1, keepdims=True)
    dshare = ((past.r - past.w_next) * dw).sum(2, keepdims=True) / total
    g["p"][:, :, cell] += dshare * here["gamma"]
    g["gamma"][:, :, cell] += dshare * here["p"]
    dr = share / total * dw
    dv, dz, da = dv + dr, dz - dr, da - dr
    du, dc = past.c * dz, dz * past.u
    g["Lambda"][:, :, cell] += np.where(here["Lambda"] > 0, -dc * eta / (lam + eta) ** 2, 0.0)
    g["eta"][:, :, cell] += (dc * lam / (lam + eta) ** 2).sum(2, keepdims=True)
    dv, da, dw = dv + du, da - du, -du.sum(1, keepdims=True)
    db = np.linalg.solve(gram + rho[..., None] * np.eye(D), dv[..., None])[..., 0]
    g["rho"][:, :, cell] += (db * (past.t - past.v_next)).sum(2, keepdims=True)
    dt = rho * db
    da, dw = da + dt, dw + dt.sum(1, keepdims=True)
    g["theta"][:, :, cell] += (da * (past.z - past.v + past.w)).sum(2, keepdims=True)
    return [-theta * da, dt + theta * da, da, dw + (theta * da).sum(1, keepdims=True)]


def run(rows: Sequence[Row], trials: Sequence[Trial], rounds: int, cells: int = CELLS) -> Floats:
    """The coefficients after `rounds` rounds. # [rows, trials, clients, D]"""
    batch = len(rows) * len(trials)
    gram = np.tile(np.array([[x.T @ x for x, _ in t.train] for t in trials]), (len(rows), 1, 1, 1))
    moment = np.tile(np.array([[x.T @ y for x, y in t.train] for t in trials]), (len(rows), 1, 1))
    count = np.tile(np.array([[len(y) for _, y in t.train] for t in trials]), (len(rows), 1))[..., None]
    start = np.tile(np.array([t.initial for t in trials]), (len(rows), 1))[:, None, :]
    s = {name: np.ones((batch, CLIENTS, cells, 1)) for name in STEPS}
    s["Lambda"] = np.repeat([r.initial_lambda for r in rows], len(trials))[:, None, None, None] * np.ones(
        (batch, CLIENTS, cells, D)
    )
    learned = {name: np.repeat([name in r.learned for r in rows], len(trials))[:, None, None, None] for name in NAMES}
    first, second = ({name: np.zeros_like(value) for name, value in s.items()} for _ in range(2))
    points = [np.array([[part[k] for part in t.train] for t in trials]) for k in range(2)]
    held_share, rng = np.repeat([r.learn_share for r in rows], len(trials)), np.random.default_rng(0)
    for number in range(1, rounds + 1):
        seen, held = (gram, moment, count), (gram, moment, count)
        if held_share.any():
            seen, held = split(points, held_share, rng)
        zero = np.zeros((batch, CLIENTS, D))
        at, pasts = [start + zero, zero, zero, start], []
        for cell in range(cells):
            at, past = forward(s, cell, at, *seen[:2])
            pasts.append(past)
        slope = 2 * (apply(held[0], at[0]) - held[1]) / held[2]
        if held_share.any():
            at = [start + zero, zero, zero, start]
            for cell in range(cells):
                at, _ = forward(s, cell, at, gram, moment)
        models = at[0]
        g = {name: np.zeros_like(value) for name, value in s.items()}
        bars = [slope, zero, zero, np.zeros_like(start)]
        for cell in reversed(range(cells)):
            bars = back(s, cell, pasts[cell], bars, seen[0], g)
        for name in NAMES:
            first[name] = 0.9 * first[name] + 0.1 * g[name]
            second[name] = 0.999 * second[name] + 0.001 * g[name] ** 2
            step = first[name] / (1 - 0.9**number) / (np.sqrt(second[name] / (1 - 0.999**number)) + EPS)
            new = s[name] - LR * learned[name] * step
            s[name] = new if name == "Lambda" else np.maximum(new, SMALLEST)
    return models.reshape(len(rows), len(trials), CLIENTS, D)


def split(
    points: list[Floats], share: Floats, rng: np.random.Generator
) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """XᵀX, XᵀY and the number of points of two random parts: the cells' and the held-out one."""
    x, y = (np.tile(part, (len(share) // len(part), *[1] * (part.ndim - 1))) for part in points)
    place = rng.permuted(np.tile(np.arange(y.shape[2]), (*y.shape[:2], 1)), axis=2)
    out = place < np.rint(share * y.shape[2])[:, None, None]
    sums = []
    for part in (~out, out):
        kept = part[..., None] * x
        sums.append((np.swapaxes(kept, 2, 3) @ x, np.einsum("bcni,bcn->bci", kept, y), part.sum(2)[..., None]))
    return sums[0], sums[1]


def ridge(trial: Trial, strength: float) -> Floats:
    """Each client alone: (XᵀX + strength I)⁻¹ (strength · initial + XᵀY). # [clients, D]"""
    systems = [(x.T @ x + strength * np.eye(D), x.T @ y + strength * trial.initial) for x, y in trial.train]
    return np.array([np.linalg.solve(a, b) for a, b in systems])


def joint(trial: Trial) -> Floats:
    """Least squares for all clients together that is told which coefficients are shared. # [clients, D]"""
    shared = D - trial.setting
    wide = []
    for client, (x, _) in enumerate(trial.train):
        own = np.zeros((len(x), CLIENTS * trial.setting))
        own[:, client * trial.setting : (client + 1) * trial.setting] = x[:, shared:]
        wide.append(np.hstack([x[:, :shared], own]))
    found = np.linalg.lstsq(np.vstack(wide), np.concatenate([y for _, y in trial.train]), rcond=None)[0]
    return np.hstack([np.tile(found[:shared], (CLIENTS, 1)), found[shared:].reshape(CLIENTS, trial.setting)])


def score(models: Floats, trial: Trial) -> tuple[float, float]:
    """RMSE and MSE on the test points, each the mean over clients."""
    mse = np.array([np.mean((x @ m - y) ** 2) for m, (x, y) in zip(models, trial.test, strict=True)])
    return float(np.sqrt(mse).mean()), float(mse.mean())


def main() -> None:
    """Compute the rows that were asked for and print mean and deviation over the trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=sorted(TABLES), default="1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--out", help="CSV file with a line per row, setting and seed")
    options = parser.parse_args()
    trials = [load_trial(setting, seed) for setting in (1, 2, 3) for seed in options.seeds]
    rows = TABLES[options.table]
    found = {row.label: models for row, models in zip(rows, run(rows, trials, options.rounds), strict=True)}
    if options.table == "1":
        found["local least squares"] = np.array([ridge(t, 0.0) for t in trials])
        for strength in (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3):
            found[f"local ridge {strength:g}"] = np.array([ridge(t, strength) for t in trials])
        found["joint least squares, told what is shared"] = np.array([joint(t) for t in trials])
    lines = [
        (label, trial.setting, trial.seed, *score(models[i], trial))
        for label, models in found.items()
        for i, trial in enumerate(trials)
    ]
    for label in found:
        per_setting = [np.array([line[3] for line in lines if line[0] == label and line[1] == k]) for k in (1, 2, 3)]
        print(f"{label:45s}", *(f"{v.mean():.4f} ± {v.std(ddof=1):.4f}" for v in per_setting), sep="  ")
    if options.out:
        with open(options.out, "w", newline="") as file:
            csv.writer(file).writerows([("row", "setting", "seed", "rmse", "mse"), *lines])


if __name__ == "__main__":
    main()
