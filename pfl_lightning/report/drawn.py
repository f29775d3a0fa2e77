"""A figure of the page, and the wishes of the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from pfl_lightning.report.forecasts import Forecast


class Drawn(NamedTuple):
    """A figure of the page."""

    name: str
    """Name of its files."""
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Wishes:
    """The user's choice of tensors and clients for figures about single ones."""

    layer: str | None = None
    tensors: Sequence[str] = ()
    clients: Sequence[int] = ()
    memory: str | None = None
    forecasts: dict[Path, list[Forecast]] = field(default_factory=dict)
    """Run directory to forecasts of some clients."""
