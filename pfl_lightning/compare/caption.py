"""The caption of the table."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_lightning.compare.experiment import Experiment
from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.pairing import has_one_partition


def build_caption(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    """The caption with the full definition of every metric in the table."""
    metrics = _metrics(outcomes)
    seeds = experiment.seeds
    if len(seeds) > 1:
        spread = f"Mean ± standard deviation (n − 1) over the seeds {', '.join(map(str, seeds))}."
    else:
        spread = f"One run, seed {seeds[0]}."
    marks = "Best in bold and second underlined, among entries that can be compared; the letters name the others."
    return " ".join(
        word for word in (experiment.caption, metrics, _sample(outcomes), spread, _partition(outcomes), marks) if word
    )


def _metrics(outcomes: Sequence[Outcome]) -> str:
    """The definitions. Of several, each has the word that the column `reported` has for it, or its methods."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.entry.metric.definition(), []).append(outcome)
    if len(rows) == 1:
        return f"Reported: {next(iter(rows))}."
    words = [found[0].entry.metric.short for found in rows.values()]
    if not all(words) or len(set(words)) < len(words):
        words = ["; ".join(dict.fromkeys(o.entry.method for o in found)) for found in rows.values()]
    return " ".join(f"Reported ({word}): {text}." for word, text in zip(words, rows, strict=True))


def _partition(outcomes: Sequence[Outcome]) -> str:
    """Whether the clients are the same for all seeds."""
    several = [outcome for outcome in outcomes if len(outcome.entry.cells) > 1]
    if not several:
        return ""
    return "All seeds have the same partition." if has_one_partition(several) else "Each seed draws its own partition."


def _sample(outcomes: Sequence[Outcome]) -> str:
    """The clients that evaluations test, where these are not all of them."""
    metrics = {str(o.entry.cells[0].config["loop"].get("eval_clients")): o for o in outcomes if o.entry.metric.everyone}
    found = [text for text in metrics if text != "None"]
    if len(metrics) != 1 or not found:
        return ""  # footnotes name rows that differ
    return f"Evaluations test a sample of the clients, drawn from the run's seed (`loop.eval_clients` {found[0]})."
