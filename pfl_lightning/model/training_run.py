"""The batches of a local training with Lightning's hooks and schedulers around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pfl_lightning.model.flat_model import FlatModel
from pfl_lightning.model.start_state import StartState
from pfl_lightning.tasks.hooks import GRADIENT
from pfl_lightning.tasks.task import Batch, Task

SKIP_EPOCH = -1
"""Returned by `on_train_batch_start` to skip the rest of the epoch."""


def hooked_batches(
    model: FlatModel, start: StartState, passes: Iterable[Iterable[Batch]], steps: int | None
) -> Iterator[Batch]:
    """Yield the batches of a training. The caller trains on each before it takes the next one.

    Args:
        model: the live model.
        start: knows the buffers and metrics of the model.
        passes: the batches of each pass over the data.
        steps: the number of batches after which the training ends, in the middle of a pass if need be.
    """
    hooks, trainer = model.task.hooks, model.task.hooks.trainer
    with _training(model):
        hooks.call("on_train_start")
        trainer.started = True
        for epoch, batches in enumerate(passes):
            trainer.current_epoch = epoch
            before = trainer.global_step
            hooks.call("on_train_epoch_start")
            for index, batch in enumerate(batches):
                model.task.batch_idx = index
                if hooks.call("on_train_batch_start", batch, index) == SKIP_EPOCH:
                    break
                yield batch
                trainer.global_step += 1
                hooks.call("on_train_batch_end", model.task.outputs, batch, index)
                if trainer.global_step == steps:
                    break
            over = steps is not None and trainer.global_step in (before, steps)
            for schedule in () if over else model.epoch_schedules:
                schedule.advance()
            hooks.call("on_train_epoch_end")
            model.task.trained.end_epoch()
            start.adopt_buffers()
            start.reset_metrics()
            if over:
                break
        hooks.call("on_train_end")
        start.adopt_buffers()


def ensure_started(task: Task) -> None:
    """Call the first hooks if no training has done so at this visit.

    Some methods compute gradients outside a training, and the loss may need attributes that these hooks set.
    """
    if task.hooks.active and not task.hooks.trainer.started:
        task.hooks.call("on_train_start")
        task.hooks.call("on_train_epoch_start")
        task.hooks.trainer.started = True


@contextmanager
def _training(model: FlatModel) -> Iterator[None]:
    """Hooks and schedulers work inside the block."""
    hooks, trainer = model.task.hooks, model.task.hooks.trainer
    trainer.current_epoch = trainer.global_step = 0
    trainer.training = True
    model.gradient_hooks = hooks if hooks.names.intersection(GRADIENT) else None
    try:
        yield
    finally:
        trainer.training = False
        model.task.batch_idx, model.task.outputs = 0, {}
        model.gradient_hooks = None
        model.epoch_schedules.clear()
