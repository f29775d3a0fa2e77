"""The runs behind a table as CSV: one line per run, with what somebody needs to trust or repeat it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.measurement import Measurement

FACTS = ("model_sha256", "clients_sha256", "world_size", "git_commit", "version", "command")
"""Taken from the run's summary.json."""
HEAD = ("method", "column", "seed", "metric", "select", "value", "round", "rounds", "minutes", "config", *FACTS)


def runs_csv(outcomes: Sequence[Outcome]) -> str:
    """Reported value as the run recorded it, its round, duration, hash of the config, hashes, commit and command."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows(_line(m) for outcome in outcomes for m in outcome.measurements)
    return out.getvalue()


def _line(run: Measurement) -> list[object]:
    cell, summary = run.cell, run.facts.summary
    seconds = summary.get("seconds")
    minutes = "" if seconds is None else f"{seconds / 60:.1f}"
    reported = [run.metric.column, run.metric.select, repr(run.value), run.round]
    facts = [summary.get(name) for name in FACTS]
    return [cell.method, cell.column, cell.seed, *reported, cell.rounds, minutes, cell.id, *facts]
