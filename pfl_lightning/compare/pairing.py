"""Two methods on the same clients."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.measurement import Measurement
from pfl_lightning.compare.statistics import Paired, Values, holm, paired


def compare_pairs(
    column: Sequence[Outcome], references: Sequence[Outcome]
) -> tuple[tuple[str, str, Paired, float], ...]:
    """(method, reference, result, p-value after Holm's correction) for every pair with recorded clients."""
    found = []
    for outcome in column:
        for reference in references:
            pair = same_client_values(outcome, reference) if outcome is not reference else None
            fixed = outcome.entry.cells[0].config.get("data", {}).get("init_args", {}).get("seed") is not None
            result = paired(*pair, same_clients=fixed) if pair else None
            if result is not None:
                found.append((outcome.entry.method, reference.entry.method, result))
    corrected = holm([result.p for _, _, result in found])
    return tuple((*one, p) for one, p in zip(found, corrected, strict=True))


def same_client_values(outcome: Outcome, reference: Outcome) -> tuple[list[Values], list[Values]] | None:
    """The values of the same clients and seeds; None where they are not the same clients or were not recorded."""
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
