"""Which entries of a column may be ranked together: those with the same data, rounds, net, local steps and moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pfl_lightning.checkpoint.differences import flatten
from pfl_lightning.compare.measurement import Measurement
from pfl_lightning.compare.plan import Entry

COMPARED = ("data", "task", "loop.rounds", "loop.participation", "loop.local_epochs", "loop.batch_size")
"""Keys that must agree, with all below them."""
NOT_COMPARED = ("data.root", "data.download", "task.optimizer")
"""Exceptions: places of files, and the optimizer, which each method may choose for itself."""
STEPS_TOLERANCE = 0.01
"""Relative difference of the gradient steps per visit that still counts as equal."""


@dataclass(frozen=True)
class Outcome:
    """An entry with the measurements of its finished cells."""

    entry: Entry
    measurements: tuple[Measurement, ...]

    @property
    def complete(self) -> bool:
        """Whether every seed is finished."""
        return len(self.measurements) == len(self.entry.cells)


def differences(column: Sequence[Outcome]) -> list[str]:
    """For each entry of a column how it differs from most others. Empty text where it does not."""
    setups = [_setup(outcome.entry) for outcome in column]
    usual = _usual([tuple(sorted(setup.items())) for setup in setups])
    texts = [_difference(setup, dict(usual)) for setup in setups]
    steps = [_steps(outcome) for outcome in column]
    usual_steps = _usual_steps([s for s, text in zip(steps, texts, strict=True) if s is not None and not text])
    for index, own in enumerate(steps):
        if own is not None and usual_steps is not None and abs(own - usual_steps) > STEPS_TOLERANCE * usual_steps:
            words = f"{own:.1f} gradient steps per visit instead of {usual_steps:.1f}"
            texts[index] = "; ".join(word for word in (texts[index], words) if word)
    return texts


def _setup(entry: Entry) -> dict[str, str]:
    """Everything that must agree, as text."""
    flat = flatten(dict(entry.cells[0].config))
    kept = {
        key: _shown(value) for key, value in flat.items() if _under(key, COMPARED) and not _under(key, NOT_COMPARED)
    }
    return {**kept, "reported": entry.metric.column, "selected": entry.metric.select}


def _usual(setups: Sequence[tuple[tuple[str, str], ...]]) -> tuple[tuple[str, str], ...]:
    """The most frequent setup. The first one of those that are equally frequent."""
    counts = Counter(setups)
    return max(counts, key=lambda setup: counts[setup])


def _difference(own: Mapping[str, str], usual: Mapping[str, str]) -> str:
    keys = [key for key in sorted(own.keys() | usual.keys()) if own.get(key) != usual.get(key)]
    return "; ".join(f"{key} {own.get(key, 'unset')} instead of {usual.get(key, 'unset')}" for key in keys)


def _steps(outcome: Outcome) -> float | None:
    """Gradient steps per visit, mean over the seeds. None until all are there, as every seed draws other clients."""
    if not outcome.complete:
        return None
    known = [m.steps_per_visit for m in outcome.measurements if m.steps_per_visit == m.steps_per_visit]
    return fmean(known) if known else None


def _usual_steps(steps: Sequence[float]) -> float | None:
    """The value that most others are close to."""
    if not steps:
        return None
    return max(steps, key=lambda one: sum(abs(one - other) <= STEPS_TOLERANCE * one for other in steps))


def _under(key: str, parents: Sequence[str]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)


def _shown(value: Any) -> str:
    """Values as people write them: a class without its module."""
    text = str(value)
    is_path = isinstance(value, str) and "." in value and value.replace(".", "").replace("_", "").isalnum()
    return text.rpartition(".")[2] if is_path and not text.rpartition(".")[2].isdigit() else text
