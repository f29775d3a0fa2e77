"""Child processes that train one cell each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import yaml

from pfl_lightning.compare.identity import NOT_PART
from pfl_lightning.compare.plan import Cell
from pfl_lightning.foundation.atomic_files import make_folder, write_text

LOG_TAIL = 4000


class Child(Protocol):
    """A run in progress."""

    def poll(self) -> int | None:
        """The exit code. None while it runs."""
        ...

    def interrupt(self) -> None:
        """Ask it to save its state and end."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...

    def complaint(self) -> str:
        """Its last words."""
        ...


class FitProcess:
    """A `pfl-fit` process in a session of its own, so that Ctrl-C reaches it through us only.

    Args:
        command: words of the command.
        log: file that its output is appended to.
        env: its environment.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(env), start_new_session=True
            )

    def poll(self) -> int | None:
        """The exit code. None while it runs."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Ask it to save its state and end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill it and its ranks."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def complaint(self) -> str:
        """The line with its error, else its last line."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - LOG_TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        said = [line.partition("error: ")[2] for line in lines if line.startswith("pfl-fit: error: ")]
        return f"{(said or lines or ['it said nothing'])[-1]} (see {self._log})"


def fit_command(config: Path, run_dir: Path, ranks: int) -> list[str]:
    """The command that starts or continues a cell."""
    words = ["--config", str(config), "--run_dir", str(run_dir), "--resume", "auto", "--fabric.devices", str(ranks)]
    return [sys.executable, "-m", "pfl_lightning.cli", *words, "--fabric.num_nodes", "1"]


def write_config(cell: Cell, folder: Path) -> Path:
    """The config file of a cell, with all keys, null included."""
    make_folder(folder)
    path = folder / f"{cell.id[:16]}.yaml"
    content = {key: value for key, value in cell.config.items() if key not in NOT_PART}
    write_text(path, f"# {cell.label}\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path


def child_environment(env: Mapping[str, str], gpus: Sequence[str] | None, python_path: Sequence[str]) -> dict[str, str]:
    """The environment of a child: outside of any SLURM job, on its own GPUs, with the user's modules in reach."""
    kept = {key: value for key, value in env.items() if not key.startswith(("SLURM_", "SRUN_"))}
    paths = [*python_path, *(part for part in [env.get("PYTHONPATH")] if part)]
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    if gpus is not None:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return kept


def gpus_of_slot(slot: int, ranks: int, count: int, visible: str | None) -> list[str]:
    """The GPUs of a slot: `ranks` of the `count` that this process sees."""
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return names[slot * ranks : (slot + 1) * ranks]
