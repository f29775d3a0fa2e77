"""A stand-in for Lightning's Trainer: the few attributes that make sense in a federation, and advice for the rest."""

from __future__ import annotations

from typing import Any

from pfl_lightning.foundation.errors import ConfigError


class TrainerStub:
    """The object behind `self.trainer` of a user's LightningModule.

    Args:
        owner: the class name of the module, for error messages.

    Attributes:
        current_epoch: the pass over the client's data, from 0 at the start of each local training.
        global_step: the number of batches since the start of the local training.
        started: whether `on_train_start` was called at this visit of the client.
        training, testing, validating: the present phase.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.current_epoch = 0
        self.global_step = 0
        self.started = False
        self.training = self.testing = self.validating = self.sanity_checking = False
        self.logger: Any = None
        self.loggers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask for such names
            raise AttributeError(name)
        raise ConfigError(
            f"task: {vars(self).get('owner', 'the module')} uses self.trainer.{name}, but a federation has no Trainer; "
            f"only current_epoch and global_step of the client's training exist"
        )
