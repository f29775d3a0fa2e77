"""When checkpoints are written, and how many stay."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lightning.foundation.errors import require


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save. A run also saves at its end and when it is asked to stop."""

    every_rounds: int = 0
    """Save every N rounds. 0 disables saving by rounds."""
    every_minutes: float = 1.0
    """Save after the first round, then every N minutes, less often if saving would cost more than `max_cost`.
    0 disables saving by time."""
    max_cost: float = 0.02
    """Largest fraction of the run's time that saving by time may take."""
    keep: int = 2
    """Number of checkpoints to keep. They share no files, so with 2 a damaged file costs at most one checkpoint. 1
    keeps the last one only. 0 writes none, and the run cannot be resumed."""

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.every_rounds >= 0, "every_rounds", self.every_rounds, "a whole number >= 0")
        require(self.every_minutes >= 0, "every_minutes", self.every_minutes, "a number >= 0")
        require(0 < self.max_cost <= 1, "max_cost", self.max_cost, "a number above 0 and up to 1")
        require(self.keep >= 0, "keep", self.keep, "a whole number >= 0")
