"""The hooks of a LightningModule: which ones a module overrides, and which ones cannot work here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from lightning import LightningModule

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.tasks.trainer_stub import TrainerStub

TRAINING = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
GRADIENT = ("on_before_zero_grad", "on_before_backward", "on_after_backward")
"""Called inside the computation of a gradient."""
OPTIMIZER = ("on_before_optimizer_step", "configure_gradient_clipping")
"""Called before the optimizer's step."""
TESTING = tuple(
    f"on_{phase}_{event}"
    for phase in ("test", "validation")
    for event in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
)
KNOWN = (*TRAINING, *GRADIENT, *OPTIMIZER, *TESTING)
REFUSED = {
    "optimizer_step": "use on_before_optimizer_step",
    "optimizer_zero_grad": "leave it out",
    "lr_scheduler_step": "use a scheduler of torch",
    "backward": "return the loss from training_step",
    "configure_callbacks": "give callbacks to the loop",
    "on_fit_start": "use on_train_start",
    "on_fit_end": "use on_train_end",
    "transfer_batch_to_device": "use data.transforms",
    "on_before_batch_transfer": "use data.transforms",
    "on_after_batch_transfer": "use data.transforms",
}
"""Methods that would have no effect, and the advice for each."""


def overrides(module: LightningModule, name: str) -> bool:
    """Whether the module has its own version of a method of LightningModule."""
    return name in vars(module) or getattr(type(module), name, None) is not getattr(LightningModule, name, None)


class Hooks:
    """Calls the hooks that a module overrides. All others cost nothing.

    Args:
        module: the module. If it is active, it gets a `TrainerStub` as its trainer, and `self.log` does nothing.
        active: whether the module counts batches and epochs even if it overrides no hook.

    Attributes:
        names: the hooks that the module overrides.
        latest: the method called last, for error messages.
        shape_training: whether a hook may change gradients or freeze parts of the model.
    """

    def __init__(self, module: LightningModule, active: bool = False) -> None:
        kind = type(module).__name__
        for name, advice in REFUSED.items():
            if overrides(module, name):
                raise ConfigError(f"task: {kind}.{name} is not supported in a federation; {advice}")
        self.module = module
        self.trainer = TrainerStub(module)
        self.names = frozenset(name for name in KNOWN if overrides(module, name))
        self.active = active or bool(self.names)
        self.shape_training = bool(self.names.intersection((*TRAINING, *GRADIENT, *OPTIMIZER)))
        self.latest = ""
        self._accepted: dict[str, tuple[int, list[int]]] = {}
        self.attach_trainer()
        if self.active:
            module.log = module.log_dict = _drop  # type: ignore[method-assign]

    def attach_trainer(self) -> None:
        """Give an active module its trainer. A copy of a LightningModule comes without one."""
        if self.active:
            self.module.trainer = self.trainer  # type: ignore[assignment]

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a hook if the module overrides it."""
        return self.run(name, *arguments) if name in self.names else None

    def run(self, name: str, *arguments: Any) -> Any:
        """Call a method of the module with as many of the arguments as it takes. `dataloader_idx` is always 0."""
        self.latest, method = name, getattr(self.module, name)
        if name not in self._accepted:
            self._accepted[name] = _accepted(method, len(arguments))
        count, zeros = self._accepted[name]
        return method(*arguments[:count], *zeros)


def _drop(*_: Any, **__: Any) -> None:
    """`self.log` where nothing is logged."""


def _accepted(method: Callable[..., Any], given: int) -> tuple[int, list[int]]:
    """How many of `given` arguments a method takes, and a 0 for `dataloader_idx` if it needs that as well."""
    parameters = list(inspect.signature(method).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return given, []
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    more = places[given : given + 1]
    return min(given, len(places)), [0] if more and more[0].default is more[0].empty else []
