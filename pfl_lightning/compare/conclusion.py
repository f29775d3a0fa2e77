"""The end of a comparison: its files, problems and missing cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_lightning.compare.cell_json import as_json
from pfl_lightning.compare.comparison import Stage, outcomes_of
from pfl_lightning.compare.experiment import Experiment
from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.markdown import markdown
from pfl_lightning.compare.output import lost_rows, write_cells, write_index, write_page, write_tables
from pfl_lightning.compare.questions import answer
from pfl_lightning.compare.session import Session
from pfl_lightning.compare.table import build_table


@dataclass(frozen=True)
class Conclusion:
    """The outcome of a comparison."""

    name: str
    outcomes: list[Outcome]
    files: list[Path]
    """table.md first. Empty if no cell is finished."""
    problems: list[str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """The results for programs."""
        cells = [as_json(m) for outcome in self.outcomes for m in outcome.measurements]
        return {"name": self.name, "files": [str(path) for path in self.files], "problems": self.problems,
                "notes": self.notes, "cells": cells}  # fmt: skip


def conclude(session: Session, stage: Stage, page: Path | None = None) -> Conclusion:
    """Write the tables of all finished cells. Without any, files of an earlier call stay as they are.

    Args:
        session: holds the results.
        stage: the latest one.
        page: a page with marks for the tables. Written only if every cell is finished.
    """
    experiment = session.comparison.experiment
    outcomes, problems = outcomes_of(stage, session.results.finished)
    counts = [(len(outcome.measurements), len(outcome.entry.cells)) for outcome in outcomes]
    measured, wanted = sum(own for own, _ in counts), sum(all_ for _, all_ in counts)
    complete = measured == wanted
    lost = lost_rows(session.folder, outcomes) if measured else []
    if measured:
        write_cells(session.folder / "cells", outcomes, stage.tried)
    files = write(experiment, outcomes, session.folder, page if complete else None) if measured else []
    failures, notes = _failures(session, stage)
    if lost:
        words = f"no longer has {', '.join(lost)}; their runs are kept, and the earlier command makes that table again"
        notes.append(f"{files[0]} {words}")
    if len(versions := _versions(outcomes)) > 1:
        words = "CHANGELOG.md names what changed between them, and a run that is removed is made again"
        notes.append(f"the runs were made by pfl_lightning {' and '.join(versions)}; {words}")
    problems = [*stage.problems, *problems, *failures]
    if session.queued:
        notes.append(f"{len(session.queued)} cells wait or run in SLURM; the same command collects them")
    if not complete and not problems and not session.queued:
        problems.append(f"{wanted - measured} of {wanted} cells are missing")
    if page and not complete:
        problems.append(f"{page} is unchanged, because cells are missing")
    return Conclusion(experiment.name, outcomes, files, problems, notes)


def write(experiment: Experiment, outcomes: list[Outcome], folder: Path, page: Path | None) -> list[Path]:
    """Write the table in every form. Returns its files."""
    table = build_table(experiment, outcomes)
    answers = []
    for index, label in enumerate(table.columns):
        best = [row.method for row in table.rows if row.places[index].rank == 1]
        answers.append(answer(experiment, outcomes, label, best))
    write_index(folder, experiment.name, outcomes, table, answers)
    if page:
        write_page(page, experiment.name, markdown(table, answers))
    return write_tables(folder, table, answers)


def _versions(outcomes: list[Outcome]) -> list[str]:
    """The versions of the package behind a table. A cell's identity does not have them."""
    found = {str(m.facts.summary.get("version") or "") for outcome in outcomes for m in outcome.measurements}
    return sorted(found - {""})


def _failures(session: Session, stage: Stage) -> tuple[list[str], list[str]]:
    """Failed cells of the table, and failed trials of a search. A trial may fail without harm."""
    final = [entry for entry in stage.entries if (entry.method, entry.column) not in stage.searching]
    needed = {cell.id: cell for entry in final for cell in entry.cells}
    problems = [f"{needed[id_].label}: {text}" for id_, text in session.failed.items() if id_ in needed]
    trials = [f"a trial of a search failed: {text}" for id_, text in session.failed.items() if id_ not in needed]
    refused = [f"{path} is left alone: {reason}" for path, reason in session.results.refused.items()]
    return problems, [*trials, *refused]
