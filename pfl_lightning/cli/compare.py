"""`pfl-compare`: run an experiment and write its table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pfl_lightning
from pfl_lightning.cli.boundary import guard, take_traceback_option
from pfl_lightning.cli.status import Status
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsonargparse import ArgumentParser

EXAMPLES = """\
examples:
  pfl-compare configs/compare/first.yaml --dry-run  cells and cost
  pfl-compare configs/compare/first.yaml            run what is missing, write the table
  pfl-compare --methods FedAvg FedPer --config configs/settings/fashion10k.yaml --seeds 0 1
  pfl-compare configs/compare/first.yaml --slurm --slurm-options="--time=01:00:00"

Tables, per-cell results and run directories are in runs/compare/<name>, or in
--out. Ctrl-C stops all runs, and the same command continues them.
Exit codes: 0 done or submitted, 1 a cell failed, 2 bad input, 130 stopped by Ctrl-C.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0, 1 where a cell failed, 2 for bad input, 128 + n after signal n (Ctrl-C: 130)."""
    stop = StopSignals()
    stop.install()
    sys.exit(run(list(sys.argv[1:] if argv is None else argv), stop))


def run(argv: list[str], stop: StopSignals | None = None) -> int:
    """Run the command. Returns the exit code."""
    words, show_traceback = take_traceback_option(argv)
    return guard("pfl-compare", lambda: _run(words, stop or StopSignals()), show_traceback)


def _run(argv: list[str], stop: StopSignals) -> int:
    if "--version" in argv:
        print(f"pfl-compare {pfl_lightning.__version__}")
        return 0
    options = parse_options(argv)
    status = Status()
    if not options.quiet:
        status.say("reading the experiment")
    try:
        from pfl_lightning.cli.compare_job import CompareJob

        job = CompareJob(options, stop)
    finally:
        status.clear()
    return job.run()


def parse_options(argv: list[str]) -> Any:
    """The options of the command. Raises a `ConfigError`, or ends after `--help`."""
    from argparse import ArgumentError

    parser = build_compare_parser()
    try:
        options = parser.parse_args(argv)
    except ArgumentError as error:
        raise ConfigError(f"{' '.join(str(error).split())}; see pfl-compare --help") from error
    check(options)
    return options


def check(options: Any) -> None:
    """Refuse options that do not go together."""
    given = [name for name in ("methods", "config", "seeds", "metric") if getattr(options, name) is not None]
    if options.experiment and given:
        raise ConfigError(f"--{given[0]}: does not go with an experiment file; write it into {options.experiment}")
    if options.variant and not options.experiment:
        raise ConfigError("--variant: needs an experiment file, which names its variants")
    if not options.experiment and not (options.methods and options.config):
        raise ConfigError("experiment: missing; give an experiment file, or --methods with --config")
    for name in ("ranks_per_cell", "jobs"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: {getattr(options, name)} is not allowed; use 1 or more")


def build_compare_parser() -> ArgumentParser:
    """The parser of `pfl-compare`."""
    from argparse import RawDescriptionHelpFormatter

    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="pfl-compare",
        description="Compare methods over seeds. Runs missing cells, continues broken ones and skips finished ones.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("experiment", nargs="?", help="experiment file (YAML); docs/compare.md describes it")
    add("--methods", nargs="+", help="compare these methods, without an experiment file")
    add("--config", help="config file that all methods share, with --methods")
    add("--seeds", nargs="+", type=int, help="seeds of the runs, with --methods; 0 by default")
    add("--metric", help="column of metrics.csv to report, with --methods; all_acc_before by default")
    add("--variant", help="one of the variants that the experiment file has, such as short")
    add("--rows", nargs="+", metavar="LABEL", help="only these methods of the experiment; * and ? match any letters")
    add("--columns", nargs="+", metavar="LABEL", help="only these columns of the experiment, such as 'CIFAR-10, *'")
    add(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings of every cell, such as loop.rounds=20",
    )
    add("--no-controls", action="store_true", help="do not add Local, FedAvg, FedAvg+FT and methods alone")
    add("--out", help="folder of the comparison; runs/compare/<name> by default")
    add("--ranks-per-cell", type=int, default=1, help="ranks of each run; 1 by default")
    add("--jobs", type=int, help="runs at a time; as many as this machine has ranks for by default")
    add("--dry-run", action="store_true", help="print the cells and their cost, and run nothing")
    add("--table-only", action="store_true", help="make the table from finished cells, and run nothing")
    add("--slurm", action="store_true", help="submit missing cells as job arrays; run again to collect them")
    add("--slurm-options", default="", help="options for sbatch, such as --slurm-options='--partition=main'")
    add("--cells", metavar="FOLDER", help="published cells, such as docs/results/fashion10k/cells, which need no run")
    add("--page", help="also put the tables between the marks of this Markdown page, once every cell is finished")
    add("--quiet", action="store_true", help="print errors only")
    add("--json", action="store_true", help="print the results as JSON")
    return parser
