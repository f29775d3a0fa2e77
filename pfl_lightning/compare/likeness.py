"""Which entries of a column may be ranked together: those with the same data, rounds, net, local steps and moment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pfl_lightning.checkpoint.differences import flatten
from pfl_lightning.compare.measurement import Measurement
from pfl_lightning.compare.metric import Metric
from pfl_lightning.compare.plan import Entry

COMPARED = ("data", "task", "loop.rounds", "loop.participation", "loop.local_epochs", "loop.batch_size")
"""Keys that must agree, with all below them."""
NOT_COMPARED = ("data.root", "data.download", "task.optimizer")
"""Exceptions: places of files, and the optimizer, which each method may choose for itself."""
SOMETIMES = ("loop.eval_clients", "loop.eval_every", "loop.test_every", "loop.finetune_epochs")
"""Keys that must agree where they have an effect on the reported value of both entries."""
TOLERANCE = 0.01
"""Relative difference of visits and of local work that still counts as equal."""


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
    works = [_work(outcome) for outcome in column]
    usual_work = _usual_work([work for work, text in zip(works, texts, strict=True) if work and not text])
    if usual_work is None:
        return texts
    return [
        "; ".join(word for word in (text, *(_other_work(work, usual_work) if work else ())) if word)
        for text, work in zip(texts, works, strict=True)
    ]


def _setup(entry: Entry) -> dict[str, str]:
    """Everything that must agree, as text."""
    flat = flatten(dict(entry.cells[0].config))
    kept = {
        key: _shown(value) for key, value in flat.items() if _under(key, COMPARED) and not _under(key, NOT_COMPARED)
    }
    effective = {key: _shown(flat[key]) for key in _with_effect(entry.metric) if key in flat}
    return {**kept, **effective, "reported": entry.metric.column, "selected": entry.metric.select}


def _with_effect(metric: Metric) -> list[str]:
    """Keys in `SOMETIMES` that have an effect: who is tested, how often a best value is looked for, and fine-tuning."""
    looks = "loop.eval_every" if metric.everyone else "loop.test_every"
    keys = {
        "loop.eval_clients": metric.everyone,
        looks: metric.select != "last",
        "loop.finetune_epochs": metric.moment == "finetuned",
    }
    return [key for key, has_effect in keys.items() if has_effect]


def _usual(setups: Sequence[tuple[tuple[str, str], ...]]) -> tuple[tuple[str, str], ...]:
    """The most frequent setup. The first one of equally frequent ones."""
    counts = Counter(setups)
    return max(counts, key=lambda setup: counts[setup])


def _difference(own: Mapping[str, str], usual: Mapping[str, str]) -> str:
    both = own.keys() & usual.keys()
    keys = [key for key in sorted(own.keys() | usual.keys()) if key in both or key not in SOMETIMES]
    keys = [key for key in keys if own.get(key) != usual.get(key)]
    return "; ".join(f"{key} {own.get(key, 'unset')} instead of {usual.get(key, 'unset')}" for key in keys)


@dataclass(frozen=True)
class _Work:
    """The local training of an entry, mean over its seeds."""

    visits: float
    planned: float
    """Visits that rounds and participation ask for."""
    steps: float
    """Gradient steps per visit. They depend on the clients that were drawn."""
    passes: float
    """Passes over a client's data per visit. NaN where they are not known."""

    def trains_like(self, other: _Work) -> bool:
        """Whether a visit takes as much work, whoever is visited."""
        known = not math.isnan(self.passes + other.passes)
        return _close(self.passes, other.passes) if known else _close(self.steps, other.steps)

    def is_like(self, other: _Work) -> bool:
        """Whether both have as many visits with as much work."""
        return not self.extra_visits(other) and self.trains_like(other)

    def extra_visits(self, other: _Work) -> str:
        """The visits, if the method has more or fewer of them than the other would have in as many rounds."""
        expected = other.visits / other.planned * self.planned
        return "" if _close(self.visits, expected) else f"{self.visits:,.0f} visits instead of {expected:,.0f}"


def _work(outcome: Outcome) -> _Work | None:
    """None until all seeds are there, as every seed draws other clients, and where a run did not record it."""
    found = outcome.measurements
    if not outcome.complete or any(math.isnan(m.steps_per_visit) for m in found):
        return None
    planned = fmean(m.cell.visits for m in found)
    visits, steps = fmean(m.visits for m in found), fmean(m.steps_per_visit for m in found)
    return _Work(visits, planned, steps, fmean(m.passes_per_visit for m in found))


def _usual_work(works: Sequence[_Work]) -> _Work | None:
    """The one that most others are like."""
    return max(works, key=lambda one: sum(one.is_like(other) for other in works), default=None)


def _other_work(own: _Work, usual: _Work) -> list[str]:
    steps = f"{own.steps:,.1f} gradient steps per visit instead of {usual.steps:,.1f}"
    return [own.extra_visits(usual), "" if own.trains_like(usual) else steps]


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE * abs(other)


def _under(key: str, parents: Sequence[str]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)


def _shown(value: Any) -> str:
    """Values as people write them: a class without its module."""
    text = "null" if value is None else str(value)
    is_path = isinstance(value, str) and "." in value and value.replace(".", "").replace("_", "").isalnum()
    return text.rpartition(".")[2] if is_path and not text.rpartition(".")[2].isdigit() else text
