"""Runs of the command on a few tiny images, numbers or series."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pfl_lightning.cli import fit

CLIENTS = ("ann", "bob", "cem", "dov")
SMALL = ["--loop.rounds", "2", "--loop.eval_every", "1", "--loop.participation", "0.5", "--fabric.devices", "1"]


def write_images(folder: Path, names: tuple[str, ...] = CLIENTS, rows: int = 16, seed: int = 0) -> Path:
    """One .npz file for each client: grey images of 16x16 whose brightness tells their class, three classes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for name in names:
        y = rng.integers(0, 3, rows)
        x = (rng.integers(0, 120, (rows, 16, 16)) + 60 * y[:, None, None]).astype(np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return folder


def image_options(folder: Path) -> list[str]:
    """The options of a run on images of `write_images`."""
    return ["--data", "ClientArrays", "--data.source", str(folder), "--data.root", str(folder.parent / "prepared")]


def fit_images(run_dir: Path, algorithm: str, *options: str) -> Path:
    """Train on tiny images; returns the run directory."""
    images = run_dir.parent / "images"
    if not images.exists():
        write_images(images)
    words = ["--algorithm", algorithm, "--task.net", "SmallCNN", *image_options(images), *SMALL, *options]
    assert fit.run([*words, "--run_dir", str(run_dir)]) == 0
    return run_dir


def fit_series(run_dir: Path, algorithm: str, *options: str) -> Path:
    """Train to forecast generated series of three clients."""
    data = ["--data", "ElectricityLoad", "--data.num_clients", "3", "--data.records", "80"]
    words = ["--algorithm", algorithm, "--task", "Forecasting", *data, *SMALL, *options]
    assert fit.run([*words, "--run_dir", str(run_dir)]) == 0
    return run_dir
