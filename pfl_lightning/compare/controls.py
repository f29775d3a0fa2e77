"""Rows that every comparison needs: the worth of a personal method is its gain over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pfl_lightning.compare.experiment import Experiment, Method

ALONE = "alone"
COLLABORATION_OFF: Mapping[str, Mapping[str, Any]] = {
    "APFL": {"algorithm.alpha": 1.0, "algorithm.alpha_lr": 0.0, "algorithm.first_visit": "initial"},
    "Ditto": {"algorithm.lam": 0.0, "algorithm.first_visit": "initial"},
    "Learn2pFed": {
        "algorithm.initial_lambda": 0.0,
        "algorithm.learnable": ["rho", "eta", "gamma", "theta", "p"],
    },
    "LpProj": {"algorithm.lam": 0.0},
    "PFedSOP": {"algorithm.eta1": 0.0},
}
"""Method → settings with which a client's tested model no longer depends on the others."""


def named_controls(experiment: Experiment) -> list[Method]:
    """The controls that are methods themselves, unless that label has a row already."""
    present = {method.label for method in experiment.methods}
    labels = [label for label in experiment.controls if label != ALONE and label not in present]
    return [Method(label, control=True) for label in labels]


def alone(method: Method, algorithm: str, experiment: Experiment) -> Method | None:
    """The same method with its collaboration switched off, where possible and wanted."""
    settings = COLLABORATION_OFF.get(algorithm)
    if settings is None or ALONE not in experiment.controls or method.control:
        return None
    root = method.root or method.label
    return replace(method, label=f"{method.label}, {ALONE}", root=root, final=settings, control=True)
