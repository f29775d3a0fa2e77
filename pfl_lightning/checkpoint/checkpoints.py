"""Saving and resuming a run, on all ranks together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

import pfl_lightning
from pfl_lightning.atomic import make_folder
from pfl_lightning.checkpoint import contents
from pfl_lightning.checkpoint.config import CheckpointConfig
from pfl_lightning.checkpoint.files import PART_BYTES, PartFile, write_part
from pfl_lightning.checkpoint.manifest import FORMAT, Manifest, manifest_path
from pfl_lightning.checkpoint.plan import MOST_FILES, clients_to_write, place
from pfl_lightning.checkpoint.tidy import remove_old
from pfl_lightning.cohort import derive_seed
from pfl_lightning.errors import RunError

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop


def to_stderr(text: str) -> None:
    """The way a warning is told by default."""
    print(f"pfl-fit: warning: {text}", file=sys.stderr, flush=True)


class Written(NamedTuple):
    """What one rank has written for a checkpoint."""

    server: PartFile | None
    clients: list[tuple[PartFile, set[int]]]


class Checkpoints:
    """The checkpoints of one run. Every rank has one and makes the same calls.

    Args:
        run_dir: they are kept in its folder `checkpoints`.
        loop: the run.
        config: when to save.
        config_text: the resolved config, to be compared when the run is resumed.
        warn: told on rank 0 of what goes wrong without ending the run.
    """

    def __init__(
        self,
        run_dir: Path,
        loop: FederatedFabricLoop,
        config: CheckpointConfig,
        config_text: str = "",
        warn: Callable[[str], None] = to_stderr,
    ) -> None:
        self.folder, self.loop, self.config, self.config_text, self.warn = (
            run_dir / "checkpoints", loop, config, config_text, warn,
        )  # fmt: skip
        self.files: list[PartFile] = []
        self.clients = [-1] * loop.data.num_clients
        self.saved_round = -1
        self.passed_over: set[int] = set()
        self._tried_at, self._cost, self._told = -float("inf"), 0.0, False

    def after_round(self, loop: FederatedFabricLoop) -> None:
        """Save if it is time; a failure is told and the run goes on, with the last checkpoint as it was."""
        if not loop.comm.on_first(self._is_due):
            return
        problem = self.save()
        if problem and not self._told and loop.comm.rank == 0:
            self.warn(f"{problem}; training goes on, the last good checkpoint stays, the next is tried when it is due")
        self._told = problem is not None

    def finish(self) -> None:
        """Save what is not saved yet; raises a `RunError` where that fails."""
        if problem := self.save():
            error = RunError(problem)
            error.collective = True
            raise error

    def save(self) -> str | None:
        """Write a checkpoint of the last whole round, unless there is one; returns what went wrong, on every rank."""
        if self.saved_round == self.loop.server.round:
            return None
        comm, started = self.loop.comm, time.monotonic()
        todo = clients_to_write(self.files, self.clients, self.loop.store.changed, MOST_FILES + 2 * comm.world)
        parts, problem = Written(None, []), None
        try:
            parts = self._write({client for client in todo if self.loop.store.home[client] == comm.rank})
        except (OSError, RunError) as error:
            problem = self._failure(error)
        answers = comm.gather((parts, problem))
        problem = next((text for _, text in answers if text), None)
        if problem is None:
            server = answers[0][0].server
            written = [part for answer, _ in answers for part in answer.clients]
            assert server is not None
            files, clients = place(self.files, self.clients, server, written)
            problem = comm.on_first(lambda: self._complete(files, clients))
            if problem is None:
                self.files, self.clients, self.saved_round = files, clients, self.loop.server.round
                self.loop.store.changed = set()
        if problem is not None:
            self._remove_new()
        self._tried_at, self._cost = time.monotonic(), time.monotonic() - started
        return problem

    def _write(self, mine: set[int]) -> Written:
        """Write this rank's files: the server's (rank 0), and its clients' where it has some to write."""
        written = Written(None, [])
        make_folder(self.folder)
        if self.loop.comm.rank == 0:
            if self.loop.monitor:
                self.loop.monitor.flush()
            path = self.folder / f"{self._name('server')}.safetensors"
            written = Written(write_part(path, contents.server_tensors(self.loop)), [])
        for count, (inside, tensors) in enumerate(contents.client_parts(self.loop, mine, PART_BYTES)):
            name = self._name("clients") + (f"-{count}" if count else "")
            written.clients.append((write_part(self.folder / f"{name}.safetensors", tensors, len(inside)), inside))
        return written

    def _name(self, what: str) -> str:
        """How the names begin of the files that this rank writes now."""
        rank = f"-{self.loop.comm.rank}of{self.loop.comm.world}" if what == "clients" else ""
        return f"{self.loop.server.round:08d}-{what}{rank}"

    def _remove_new(self) -> None:
        """Of a checkpoint that failed nothing stays: a disk that is nearly full would fill up with attempts."""
        names = [f"{self._name('clients')}*"]
        if self.loop.comm.rank == 0:
            names = [manifest_path(self.folder, self.loop.server.round).name, f"{self._name('server')}*", *names]
        with suppress(OSError):
            for path in [path for name in names for path in self.folder.glob(name)]:
                path.unlink(missing_ok=True)

    def _complete(self, files: list[PartFile], clients: list[int]) -> str | None:
        """On rank 0, when all parts are there: write the manifest, then remove what no checkpoint needs any more."""
        loop = self.loop
        manifest = Manifest(
            format=FORMAT,
            version=pfl_lightning.__version__,
            torch=str(torch.__version__),
            round=loop.server.round,
            seed=loop.seed,
            rng=derive_seed(loop.seed, "checkpoint", loop.server.round),
            layout=loop.server.layout.fingerprint(),
            data=self._data_fingerprint,
            config=self.config_text,
            server=0,
            files=files,
            clients=clients,
            history=loop.history.numbers(),
        )
        try:
            manifest.write(self.folder)
        except OSError as error:
            return self._failure(error)
        self.passed_over.discard(manifest.round)
        remove_old(self.folder, manifest, self.config.keep, self.passed_over)
        return None

    @cached_property
    def _data_fingerprint(self) -> str:
        return contents.data_fingerprint(self.loop.data)

    def _is_due(self) -> bool:
        """Asked on rank 0 only: clocks differ."""
        config, passed = self.config, time.monotonic() - self._tried_at
        if config.every_rounds and self.loop.server.round % config.every_rounds == 0:
            return True
        return config.every_minutes > 0 and passed >= max(60 * config.every_minutes, self._cost / config.max_cost)

    def _failure(self, error: OSError | RunError) -> str:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return f"the checkpoint of round {self.loop.server.round} cannot be written to {self.folder}: {reason}"
