"""`pfl-export`: write the models of a run as files."""

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
    from pfl_lightning.export.saved_run import SavedRun

EXAMPLES = """\
  pfl-export runs/fedper --client 17           the personal model of client 17
  pfl-export runs/fedper --client 3 17 --onnx  two clients, with ONNX files
  pfl-export runs/fedper --all --out models    every client
  pfl-export runs/fedper --global --best       the global model, and the best client's
"""
DESCRIPTION = """\
Write models of a run: a state_dict as safetensors, which plain torch loads,
and a card (JSON and Markdown) with method, round, results, labels,
normalisation, config and hashes. The run itself is not changed."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0, 1 if it failed, 2 for bad input, 130 after Ctrl-C."""
    sys.exit(run_command(build_export_parser(), argv, export))


def build_export_parser() -> ArgumentParser:
    """The parser of `pfl-export`."""
    parser = new_parser("pfl-export", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("run", help="directory of the run")
    add("--client", nargs="+", metavar="CLIENT", help="numbers or names of clients")
    add("--all", action="store_true", help="all clients")
    add("--global", dest="global_model", action="store_true", help="the plain global model")
    add("--best", action="store_true", help="the client whose personal model has the best test result")
    add("--finetuned", action="store_true", help="copies fine-tuned for loop.finetune_epochs instead of models before")
    add("--onnx", action="store_true", help="also ONNX files for raw inputs, checked to 1e-4 on test data")
    add("--out", help="folder of the files; RUN/export by default")
    return parser


def export(options: Any, status: Status) -> int:
    """Write the models that the options ask for. Returns the exit code."""
    if not (options.client or options.all or options.global_model or options.best):
        raise ConfigError("client: missing; use --client NUMBER, --all, --global or --best")
    status.say("opening the run")
    from pfl_lightning.cli.saved_run import open_run
    from pfl_lightning.export.export import export_client, export_global
    from pfl_lightning.export.onnx_file import require_onnx
    from pfl_lightning.foundation.torch_state import quiet_torch

    if options.onnx:
        require_onnx()
    run = open_run(options.run, options.trust)
    if options.finetuned and not run.loop.config.finetune_epochs:
        raise ConfigError("finetuned: the run has loop.finetune_epochs 0, so it has no fine-tuned models")
    folder = Path(options.out) if options.out else run.path / "export"
    with quiet_torch():
        clients = chosen_clients(run, options)
        files = export_global(run, folder, options.onnx) if options.global_model else []
        for done, client in enumerate(clients):
            status.say(f"model {done + 1} of {len(clients)}")
            files += export_client(run, client, folder, options.onnx, options.finetuned)
    status.clear()
    report_files(options, files, run=str(run.path), round=run.round, clients=clients)
    return 0


def chosen_clients(run: SavedRun, options: Any) -> list[int]:
    """The clients that the options name, in ascending order."""
    from pfl_lightning.export.export import best_client

    clients = {run.number_of(client) for client in options.client or ()}
    if options.all:
        clients |= set(range(run.loop.data.num_clients))
    if options.best:
        clients.add(best_client(run))
    return sorted(clients)
