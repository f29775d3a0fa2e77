"""What a run records besides its metrics, for the figures of the papers. Off by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_lightning.algorithms.learn2pfed import Learn2pFed
from pfl_lightning.data.polynomial import Polynomial
from pfl_lightning.errors import ConfigError
from pfl_lightning.report.lambdas import LambdaRecorder
from pfl_lightning.report.mask_record import MaskRecorder

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop

MOST_BYTES = 8 * 2**30


@dataclass(frozen=True)
class ReportConfig:
    """What to record for figures."""

    masks: bool = False
    """Count how often each parameter of each client is personal: masks.safetensors and pictures. Needs 5 bytes for each
    parameter of each client on every rank."""
    lambdas: bool = False
    """Learn2pFed only: write the Λ that it has learned, lambdas.csv and lambdas.png."""


def recorders(
    config: ReportConfig, loop: FederatedFabricLoop, run_dir: Path
) -> list[Callable[[FederatedFabricLoop], None]]:
    """The hooks for the loop's `on_round_end` that the config asks for."""
    hooks: list[Callable[[FederatedFabricLoop], None]] = []
    if config.masks:
        need = 5 * loop.data.num_clients * loop.server.layout.num_parameters
        if need > MOST_BYTES:
            raise ConfigError(
                f"report.masks: {need / 2**30:,.0f} GiB would be needed on every rank for {loop.data.num_clients} "
                f"clients of this model; up to {MOST_BYTES // 2**30} GiB are allowed"
            )
        hooks.append(MaskRecorder(run_dir))
    if config.lambdas:
        if not isinstance(loop.algorithm, Learn2pFed):
            raise ConfigError(f"report.lambdas: {type(loop.algorithm).__name__} has none; allowed with Learn2pFed only")
        shared = loop.data.shared if isinstance(loop.data, Polynomial) else ()
        hooks.append(LambdaRecorder(run_dir, [place for place, value in enumerate(shared) if not value]))
    return hooks
