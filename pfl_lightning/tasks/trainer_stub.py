"""A stand-in for Lightning's Trainer: the few attributes that make sense in a federation, and advice for the rest."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from lightning import LightningModule
from lightning.pytorch.plugins.precision import Precision

from pfl_lightning.foundation.errors import ConfigError

NO_OPTIMIZERS = "leave out self.optimizers(), self.lr_schedulers() and self.manual_backward()"
GIVE_NUMBER = "give the number as an argument of the module"
ADVICE = {
    "strategy": NO_OPTIMIZERS,
    "optimizers": NO_OPTIMIZERS,
    "lr_scheduler_configs": NO_OPTIMIZERS,
    "estimated_stepping_batches": GIVE_NUMBER,
    "num_training_batches": GIVE_NUMBER,
    "max_epochs": GIVE_NUMBER,
    "max_steps": GIVE_NUMBER,
    "datamodule": "the data comes from the loop",
    "train_dataloader": "the data comes from the loop",
}
"""What to do instead of using an attribute."""


class TrainerStub:
    """The object behind `self.trainer` of a user's LightningModule.

    A client trains as if it were alone, on whatever rank it is: what the module does must not depend on the ranks.

    Args:
        module: the module.

    Attributes:
        model, lightning_module: the module, as in `Adam(self.trainer.model.parameters())`.
        current_epoch: the pass over the client's data, from 0 at the start of each local training.
        global_step: the number of batches since the start of the local training.
        started: whether `on_train_start` was called at this visit of the client.
        training, testing, validating: the present phase.
    """

    is_global_zero, global_rank, local_rank, world_size = True, 0, 0, 1
    progress_bar_callback = gradient_clip_val = gradient_clip_algorithm = None

    def __init__(self, module: LightningModule) -> None:
        self.model = self.lightning_module = module
        self.current_epoch = 0
        self.global_step = 0
        self.started = False
        self.training = self.testing = self.validating = self.sanity_checking = False
        self.logger: Any = None
        self.loggers: list[Any] = []

    @cached_property
    def precision_plugin(self) -> Precision:
        """What `self.clip_gradients` of a module uses."""
        return Precision()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask for such names
            raise AttributeError(name)
        advice = ADVICE.get(name, "only current_epoch and global_step of the client's training exist")
        owner = type(vars(self)["model"]).__name__ if "model" in vars(self) else "the module"
        raise ConfigError(f"task: {owner} uses self.trainer.{name}, but a federation has no Trainer; {advice}")
