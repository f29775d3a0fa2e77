"""When checkpoints are written, and how many stay."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lightning.errors import require


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save. The end of the run and a signal to stop save as well."""

    every_rounds: int = 0
    """Save after every so many rounds; 0: not by rounds."""
    every_minutes: float = 1.0
    """Save after the first round, then when so many minutes have passed and saving costs less than `max_cost`;
    0: not by time."""
    max_cost: float = 0.02
    """The share of the run's time that saving by time may take; it is spaced out where a disk is slow."""
    keep: int = 2
    """Checkpoints that stay; older ones are removed once a new one is complete."""

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.every_rounds >= 0, "every_rounds", self.every_rounds, "a whole number >= 0")
        require(self.every_minutes >= 0, "every_minutes", self.every_minutes, "a number >= 0")
        require(0 < self.max_cost <= 1, "max_cost", self.max_cost, "a number above 0 and up to 1")
        require(self.keep >= 1, "keep", self.keep, "a whole number >= 1")
