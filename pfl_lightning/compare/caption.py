"""The caption of the table."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_lightning.compare.experiment import Experiment
from pfl_lightning.compare.likeness import Outcome


def build_caption(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    """The caption with the full definition of every metric in the table."""
    rows: dict[str, list[str]] = {}
    for outcome in outcomes:
        labels = rows.setdefault(outcome.entry.metric.definition(), [])
        if outcome.entry.method not in labels:
            labels.append(outcome.entry.method)
    if len(rows) == 1:
        metrics = f"Reported: {next(iter(rows))}."
    else:
        metrics = "Reported: " + "; ".join(f"{text} ({', '.join(labels)})" for text, labels in rows.items()) + "."
    seeds = experiment.seeds
    if len(seeds) > 1:
        spread = f"Mean ± standard deviation (n − 1) over the seeds {', '.join(map(str, seeds))}."
    else:
        spread = f"One run, seed {seeds[0]}."
    marks = "Best in bold and second underlined, among entries that can be compared; the letters name the others."
    return " ".join(word for word in (experiment.caption, metrics, spread, _partition(outcomes), marks) if word)


def _partition(outcomes: Sequence[Outcome]) -> str:
    """Whether the clients are the same for all seeds."""
    seeds = {o.entry.cells[0].config.get("data", {}).get("init_args", {}).get("seed") for o in outcomes}
    if any(len(o.entry.cells) > 1 for o in outcomes):
        return "Each seed draws its own partition." if None in seeds else "All seeds have the same partition."
    return ""
