"""`pfl-report`: a page and figures about one or many runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_lightning.cli.tool import new_parser, report_files, run_command
from pfl_lightning.foundation.errors import ConfigError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from pfl_lightning.cli.status import Status
    from pfl_lightning.report.forecasts import Forecast
    from pfl_lightning.report.run_data import RunData

EXAMPLES = """\
  pfl-report runs/fedobp                         one run: page and figures in runs/fedobp/report
  pfl-report runs/fedavg runs/fedper runs/local  three methods and the gain over Local
  pfl-report runs/seed0 runs/seed1 runs/seed2    one method, its seeds as a band
  pfl-report runs/compare/fashion10k --out page  all runs of a comparison
  pfl-report runs/fedpurin --tensors net.head.weight --clients 0 7
"""
DESCRIPTION = """\
Make one HTML page that opens offline, and its figures as PNG, PDF and SVG.
Figures without data are left out."""
FORECAST_CLIENTS = 3


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0, 1 if it failed, 2 for bad input, 130 after Ctrl-C."""
    sys.exit(run_command(build_report_parser(), argv, report))


def build_report_parser() -> ArgumentParser:
    """The parser of `pfl-report`."""
    parser = new_parser("pfl-report", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("run", nargs="+", help="directories of runs, or folders with runs in them")
    add("--out", help="folder of the page; RUN/report for one directory, ./report for several by default")
    add("--metric", help="column of metrics.csv to show; that of all clients before local training by default")
    add("--layer", help="layer whose masks are compared, such as net.head; the last one with a mask by default")
    add("--tensors", nargs="+", default=[], help="tensors whose activations are shown, such as net.head.weight")
    add("--clients", nargs="+", type=int, default=[], help="clients whose activations are shown; the five visited most")
    add("--memory", help="tensor in the clients' memory to show; Lambda by default")
    return parser


def report(options: Any, status: Status) -> int:
    """Write the page and the figures. Returns the exit code."""
    status.say("reading the runs")
    from pfl_lightning.report.comparison import is_comparison, read_comparison, read_table
    from pfl_lightning.report.drawn import Wishes
    from pfl_lightning.report.figures import draw_all
    from pfl_lightning.report.groups import group_runs, reported
    from pfl_lightning.report.page import write_report
    from pfl_lightning.report.run_data import find_runs, read_run

    places = [Path(run) for run in options.run]
    comparisons = [place for place in places if is_comparison(place)]
    runs = [run for place in comparisons for run in read_comparison(place)]
    runs += [read_run(path) for path in find_runs([place for place in places if place not in comparisons])]
    tables = [table for place in comparisons if (table := read_table(place)) is not None]
    shown, groups = reported(runs, options.metric), group_runs(runs)
    notes: list[str] = []
    forecasts = {group.first.path: forecast(group.first, options.trust, notes) for group in groups}
    wishes = Wishes(options.layer, options.tensors, options.clients, options.memory, forecasts)
    drawn = list(draw_all(groups, shown, wishes, status.say))
    status.say("writing the page")
    files = write_report(_folder(options, places), groups, shown, drawn, tables)
    status.clear()
    for note in notes if not options.quiet else ():
        print(f"pfl-report: left out: {note}", file=sys.stderr)
    if options.json:
        report_files(options, files, runs=[str(run.path) for run in runs], column=shown.column)
    else:
        report_files(options, files[:1])
    return 0


def _folder(options: Any, places: list[Path]) -> Path:
    if options.out:
        return Path(options.out)
    return places[0] / "report" if len(places) == 1 else Path("report")


def forecast(run: RunData, trust: bool, notes: list[str]) -> list[Forecast]:
    """Predictions of a few clients if the run predicts numbers. A reason why there are none is added to `notes`."""
    if run.class_names or not run.facts:
        return []
    from pfl_lightning.cli.saved_run import open_run
    from pfl_lightning.export.forecast import forecast_client
    from pfl_lightning.foundation.torch_state import quiet_torch

    try:
        saved = open_run(run.path, trust)
        with quiet_torch():
            chosen = range(min(FORECAST_CLIENTS, saved.loop.data.num_clients))
            return [found for client in chosen if (found := forecast_client(saved, client)) is not None]
    except ConfigError as error:
        notes.append(f"forecast against truth: {error}")
        return []
