"""Two methods on the same clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfl_lightning.compare.controls import ALONE
from pfl_lightning.compare.layers import class_name
from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.measurement import Measurement
from pfl_lightning.compare.statistics import Paired, Values, holm, paired

ITSELF = "itself alone"
"""Name of the comparison with the same method whose collaboration is switched off."""


def compare_pairs(
    column: Sequence[Outcome], references: Sequence[Outcome]
) -> tuple[tuple[str, str, Paired, float], ...]:
    """(method, reference, result, p-value after Holm's correction) for every pair with recorded clients."""
    alone = {o.entry.method: o for o in column}
    found: list[tuple[str, str, Paired]] = []
    tests: list[frozenset[str]] = []
    for outcome in column:
        method = outcome.entry.method
        others = [(reference.entry.method, counterpart(outcome, reference, column)) for reference in references]
        for name, other in [*others, (ITSELF, alone.get(f"{method}, {ALONE}"))]:
            result = _compared(outcome, other) if other else None
            if other is not None and result is not None:
                found.append((method, name, result))
                tests.append(frozenset((method, other.entry.method)))
    raw = {test: result.p for test, (_, _, result) in zip(tests, found, strict=True)}  # A against B is B against A
    corrected = dict(zip(raw, holm(list(raw.values())), strict=True))
    return tuple((*one, corrected[test]) for one, test in zip(found, tests, strict=True))


def counterpart(outcome: Outcome, reference: Outcome, column: Sequence[Outcome]) -> Outcome | None:
    """The row that an outcome is compared with: the reference, or the same method with the outcome's net.

    None if there is no such row, or if it is the outcome itself.
    """
    alike = [o for o in (reference, *column) if _kind(o) == _kind(reference) and _net(o) == _net(outcome)]
    return alike[0] if alike and alike[0] is not outcome else None


def _compared(outcome: Outcome, other: Outcome) -> Paired | None:
    pair = same_client_values(outcome, other)
    return paired(*pair, same_clients=has_one_partition([outcome])) if pair else None


def has_one_partition(outcomes: Sequence[Outcome]) -> bool:
    """Whether the clients are the same for all seeds: by the runs' partitions, else by the config.

    Data with clients of their own may have no seed.
    """
    found = [{m.facts.partition_sha256 for m in outcome.measurements} for outcome in outcomes]
    if all(len(outcome.measurements) > 1 for outcome in outcomes) and not any(None in digests for digests in found):
        return all(len(digests) == 1 for digests in found)
    configs = [outcome.entry.cells[0].config for outcome in outcomes]
    return all(config.get("data", {}).get("init_args", {}).get("seed") is not None for config in configs)


def _kind(outcome: Outcome) -> tuple[Any, ...]:
    """The class of the method, and the moment at which it is reported."""
    return algorithm_of(outcome), outcome.entry.metric.column


def algorithm_of(outcome: Outcome) -> str | None:
    """The class of the method of a row, whatever the row is called."""
    return class_name(outcome.entry.cells[0].config, "algorithm")


def _net(outcome: Outcome) -> Any:
    return outcome.entry.cells[0].config.get("task", {}).get("init_args", {}).get("net")


def same_client_values(outcome: Outcome, reference: Outcome) -> tuple[list[Values], list[Values]] | None:
    """The values of the same clients and seeds. None where they are not the same clients or were not recorded."""
    others = {m.cell.seed: m for m in reference.measurements}
    own: list[Values] = []
    theirs: list[Values] = []
    for m in outcome.measurements:
        other = others.get(m.cell.seed)
        if other is None or m.clients is None or other.clients is None or not _same_clients(m, other):
            continue
        own.append(m.clients)
        theirs.append(other.clients)
    return (own, theirs) if own else None


def _same_clients(one: Measurement, other: Measurement) -> bool:
    """Whether two runs have the same partition and the same metric."""
    a, b = one.cell.config.get("data"), other.cell.config.get("data")
    same_partition = a == b and one.facts.partition_sha256 == other.facts.partition_sha256
    same_size = one.clients is not None and other.clients is not None and len(one.clients) == len(other.clients)
    return same_partition and same_size and one.metric.name == other.metric.name
