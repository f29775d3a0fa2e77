"""Checkpoints: complete, verified, incremental, and resumable on any number of ranks."""

from pfl_lightning.checkpoint.checkpoints import Checkpoints
from pfl_lightning.checkpoint.config import CheckpointConfig
from pfl_lightning.checkpoint.resume import resume

__all__ = ["CheckpointConfig", "Checkpoints", "resume"]
