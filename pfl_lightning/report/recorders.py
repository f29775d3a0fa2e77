"""The recorders of a run: tables that every run writes, and data for figures that the config asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_lightning.callback import Callback
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.monitor.client_tables import ClientTables
from pfl_lightning.report.mask_record import MaskRecorder

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop

MOST_BYTES = 8 * 2**30


@dataclass(frozen=True)
class ReportConfig:
    """Data to record for the figures of pfl-report."""

    masks: bool = False
    """Count how often each parameter of each client is personal, into masks.safetensors. Needs 5 bytes for each
    parameter of each client on every rank."""


def recorders(config: ReportConfig, loop: FederatedFabricLoop, run_dir: Path) -> list[Callback]:
    """The recorders of a run. They write nothing before the first round."""
    chosen: list[Callback] = [ClientTables(run_dir, loop)]
    if config.masks:
        need = 5 * loop.data.num_clients * loop.server.layout.num_parameters
        if need > MOST_BYTES:
            raise ConfigError(
                f"report.masks: {need / 2**30:,.0f} GiB would be needed on every rank for {loop.data.num_clients} "
                f"clients of this model; at most {MOST_BYTES // 2**30} GiB are allowed"
            )
        chosen.append(MaskRecorder(run_dir, loop))
    return chosen
