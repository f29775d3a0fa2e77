"""Tiny runs of the methods whose figures are tested, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_lightning.cli import fit
from tests.helpers.tiny_runs import SMALL, fit_images, fit_series


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run directory per name below."""
    folder = tmp_path_factory.mktemp("report")
    fit_images(folder / "fedobp-0", "FedOBP", "--algorithm.quantile", "0.9")
    fit_images(folder / "fedobp-1", "FedOBP", "--algorithm.quantile", "0.9", "--seed", "1")
    fit_images(folder / "fedobp-low", "FedOBP", "--algorithm.quantile", "0.5")
    fit_images(folder / "fedobp-high", "FedOBP", "--algorithm.quantile", "0.99")
    fit_images(folder / "local", "Local")
    fit_images(folder / "fedselect", "FedSelect", "--loop.participation", "1.0")
    fit_images(folder / "fedpurin", "FedPURIN", "--report.masks", "true")
    fit_series(folder / "series", "FedAvg")
    words = ["--config", "configs/learn2pfed_fig3.yaml", *SMALL, "--run_dir", str(folder / "lambda")]
    assert fit.run(words) == 0
    return folder
