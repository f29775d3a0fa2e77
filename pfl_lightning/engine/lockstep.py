"""A live model whose client runs in lockstep with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.engine.pausable import PausableCall
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.flat_model import Loss
from pfl_lightning.model.local_training import Training
from pfl_lightning.tasks.task import Batch


class LockstepClient(ClientModule):
    """A live model that may train in lockstep with others. It has random numbers of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.call: PausableCall[Batch | Training, Tensor] | None = None
        self.joins = False
        """Whether the model can train together with others."""
        self._rng_states: list[tuple[Callable[[Tensor], None], Tensor]] = []

    @override
    def compute_gradient(self, batch: Batch, loss: Loss | None = None) -> Tensor:
        # an algorithm's own loss may do anything, so it is computed at once and for this client alone
        if self.call is None or loss is not None or not self.call.is_here:
            return self.backpropagate(batch, loss)
        return self.call.ask(batch)

    @override
    def take_steps(self, training: Training) -> None:
        alone = not self.joins or training.loss is not None or self.epoch_schedules
        if self.call is None or alone or not self.call.is_here:
            super().take_steps(training)
        else:
            self.call.ask(training)

    @contextmanager
    def own_rng(self) -> Iterator[None]:
        """Continue this client's random numbers inside the block, and leave torch's random state as it was."""
        with self.fork_rng():
            for set_state, state in self._rng_states:
                set_state(state)
            try:
                yield
            finally:
                self._rng_states = [(torch.set_rng_state, torch.get_rng_state())]
                for device in self.generators:
                    setter = partial(torch.cuda.set_rng_state, device=device)
                    self._rng_states.append((setter, torch.cuda.get_rng_state(device)))
