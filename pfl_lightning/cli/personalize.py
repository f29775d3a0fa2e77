"""`pfl-personalize`: a model for a client outside the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_lightning.cli.tool import new_parser, report_files, run_command
from pfl_lightning.foundation.errors import require

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from pfl_lightning.cli.status import Status

EXAMPLES = """\
  pfl-personalize runs/fedper --data new.npz        arrays x, y or x_train, y_train, …
  pfl-personalize runs/fedper --data photos --onnx  images, one folder for each class
  pfl-personalize runs/table --data new.csv         a table like that of the run
  pfl-personalize runs/fedper --data new.npz --no-training
"""
DESCRIPTION = """\
Give a client outside the run its model, by the run's own method: the global
model of the last checkpoint, made personal, then trained on the client's data
for one visit. Writes the model and its card like pfl-export. The run itself is
not changed."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0, 1 if it failed, 2 for bad input, 130 after Ctrl-C."""
    sys.exit(run_command(build_personalize_parser(), argv, personalize_new))


def build_personalize_parser() -> ArgumentParser:
    """The parser of `pfl-personalize`."""
    parser = new_parser("pfl-personalize", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("run", help="directory of the run")
    add("--data", required=True, help="samples of the new client: an .npz file, a folder of images, or a table")
    add("--test-share", type=float, default=0.25, help="fraction to test on, if the data names no test samples")
    add("--no-training", action="store_true", help="stop before the local training")
    add("--onnx", action="store_true", help="also an ONNX file for raw inputs, checked to 1e-4 on the client's data")
    add("--out", default="personalized", help="folder of the files; ./personalized by default")
    return parser


def personalize_new(options: Any, status: Status) -> int:
    """Write the model of the new client. Returns the exit code."""
    require(0 <= options.test_share < 1, "test-share", options.test_share, "a number from 0 up to, not including, 1")
    status.say("opening the run")
    from pfl_lightning.cli.saved_run import open_run
    from pfl_lightning.export.new_data import read_new_client
    from pfl_lightning.export.onnx_file import require_onnx
    from pfl_lightning.export.personalize import personalize
    from pfl_lightning.foundation.torch_state import quiet_torch

    if options.onnx:
        require_onnx()
    run, path = open_run(options.run, options.trust), Path(options.data)
    status.say("training")
    with quiet_torch():
        data = read_new_client(run.loop.data, path, options.test_share, run.loop.seed)
        files, results = personalize(run, data, path, Path(options.out), not options.no_training, options.onnx)
    status.clear()
    if not (options.quiet or options.json):
        for name, value in results.items():
            print(f"{name:<14} {value:.4f}")
    report_files(options, files, run=str(run.path), round=run.round, results=results)
    return 0
