"""Checkpoints: complete, verified, incremental, resumable on another number of ranks."""

from pfl_lightning.checkpoint.checkpoints import Checkpoints
from pfl_lightning.checkpoint.config import CheckpointConfig
from pfl_lightning.checkpoint.resume import resume

__all__ = ["CheckpointConfig", "Checkpoints", "resume"]
