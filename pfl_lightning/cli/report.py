"""`pfl-report`: draw the masks of a finished run once more, for any layer and any clients."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pfl_lightning.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit code 2 for bad input."""
    parser = argparse.ArgumentParser(prog="pfl-report", description=__doc__)
    parser.add_argument("run", type=Path, help="directory of a run that was made with --report.masks true")
    parser.add_argument("--layer", default="net.head", help="tensor or module whose masks are compared [net.head]")
    parser.add_argument("--clients", type=int, nargs="+", help="whose choices are shown [the five visited most]")
    args = parser.parse_args(argv)
    try:
        for path in draw(args.run, args.layer, args.clients):
            print(path)
    except ConfigError as error:
        print(f"pfl-report: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def draw(run: Path, layer: str, clients: Sequence[int] | None) -> list[Path]:
    """Write the pictures into the run's directory."""
    from safetensors import SafetensorError

    from pfl_lightning.report.mask_figures import draw_masks
    from pfl_lightning.report.mask_record import FILE, MaskHistory

    if not (run / FILE).is_file():
        raise ConfigError(f"run: there is no {FILE} in {run}; runs with --report.masks true leave one at their end")
    try:
        history = MaskHistory.load(run / FILE)
        unknown = [client for client in clients or [] if not 0 <= client < len(history.visits)]
        if unknown:
            raise ConfigError(
                f"clients: {unknown[0]} is not a client of the run; allowed: 0 to {len(history.visits) - 1}"
            )
        return draw_masks(history, run, layer, clients)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"run: {run}: {error}") from error
