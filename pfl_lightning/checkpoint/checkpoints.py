"""Saving a run, on all ranks together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from typing_extensions import override

from pfl_lightning.callback import Callback
from pfl_lightning.checkpoint import contents
from pfl_lightning.checkpoint.config import CheckpointConfig
from pfl_lightning.checkpoint.files import PART_BYTES, PartFile, write_part
from pfl_lightning.checkpoint.manifest import Manifest, manifest_path
from pfl_lightning.checkpoint.marker import note_checkpoint
from pfl_lightning.checkpoint.plan import MOST_FILES, clients_to_write, place
from pfl_lightning.checkpoint.slots import Slot, empty_slots
from pfl_lightning.checkpoint.tidy import remove_unneeded
from pfl_lightning.foundation.atomic_files import make_folder
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.foundation.state import State
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.monitor.snapshot import NO_FILES, Snapshot

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop


def warn_on_stderr(text: str) -> None:
    """Print a warning. The default of `Checkpoints`."""
    print(f"pfl-fit: warning: {text}", file=sys.stderr, flush=True)


class Written(NamedTuple):
    """The files that one rank has written for a checkpoint."""

    server: PartFile | None = None
    clients: tuple[tuple[PartFile, set[int]], ...] = ()


class Checkpoints(Callback):
    """The checkpoints of one run. Every rank has one and makes the same calls.

    Args:
        run_dir: directory of the run. The checkpoints are in its folder `checkpoints`.
        loop: the run.
        config: when to save, and how many checkpoints to keep.
        config_text: the resolved config, which is compared when the run is resumed.
        warn: called on rank 0 with problems that do not end the run.
        results: called on rank 0 to flush the result files and describe them.
        callbacks: code that follows the run and whose state is saved.
    """

    def __init__(
        self,
        run_dir: Path,
        loop: FederatedFabricLoop,
        config: CheckpointConfig,
        config_text: str = "",
        warn: Callable[[str], None] = warn_on_stderr,
        results: Callable[[], Snapshot] = lambda: NO_FILES,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.run_dir, self.folder = run_dir, run_dir / "checkpoints"
        self.loop, self.config, self.config_text, self.warn = loop, config, config_text, warn
        self.results, self.callbacks = results, callbacks
        self.slots = empty_slots(config.keep, loop.data.num_clients)
        self.saved_round = -1
        self.loaded_results = NO_FILES
        """The result files at the checkpoint from which the run continues."""
        self._results = NO_FILES
        self._tried_at, self._cost, self._warned = -float("inf"), 0.0, False

    @property
    def enabled(self) -> bool:
        """Whether the run writes checkpoints at all."""
        return self.config.keep > 0

    @override
    def on_round_end(self, record: RoundRecord) -> None:
        """Save if it is time. A failure is a warning: training goes on, and the last checkpoint stays."""
        loop = self.loop
        if not loop.comm.run_on_rank_zero(self._is_due):
            return
        problem = self.save()
        if problem and not self._warned and loop.comm.rank == 0:
            self.warn(f"{problem}; training goes on, and the last good checkpoint stays")
        self._warned = problem is not None

    def finish(self) -> None:
        """Save the rounds not saved yet. Raises a `RunError` if that fails."""
        if problem := self.save():
            error = RunError(problem)
            error.collective = True
            raise error

    def save(self) -> str | None:
        """Write a checkpoint of the last complete round, unless there is one. Returns the problem, on every rank."""
        if not self.enabled or self.saved_round == self.loop.server.round:
            return None
        comm, started = self.loop.comm, time.monotonic()
        for slot in self.slots:
            slot.outdated |= contents.trained_since_save(self.loop)
        contents.note_saved(self.loop)
        slot = min(self.slots, key=lambda slot: slot.round)
        todo = clients_to_write(slot.files, slot.clients, slot.outdated, MOST_FILES + 2 * comm.world)
        states = contents.callback_states(self.callbacks)
        written, problem = Written(), None
        try:
            written = self._write(todo, states)
        except (OSError, RunError) as error:
            problem = self._failure(error)
        answers = comm.gather((written, problem))
        problem = next((text for _, text in answers if text), None)
        if problem is None:
            new = self._new_slot(slot, [answer for answer, _ in answers])
            problem = comm.run_on_rank_zero(lambda: self._complete(slot, new))
            if problem is None:
                self.slots[self.slots.index(slot)] = new
                self.saved_round = new.round
        if problem is not None:
            self._remove_new()
        self._tried_at, self._cost = time.monotonic(), time.monotonic() - started
        return problem

    @cached_property
    def data_fingerprint(self) -> str:
        """Identity of the run's data on this rank. A large data set takes a second per gigabyte at first use."""
        return contents.data_fingerprint(self.loop.data)

    def _write(self, todo: set[int], states: State) -> Written:
        """Write this rank's files: the server's on rank 0, and those of its clients."""
        make_folder(self.folder)
        server = None
        if self.loop.comm.rank == 0:
            self._results = self.results()
            server = write_part(self._path("server"), contents.server_tensors(self.loop, self._results, states))
        parts = []
        for count, (inside, tensors) in enumerate(contents.client_parts(self.loop, todo, PART_BYTES)):
            path = self._path("clients", f"-{count}" if count else "")
            parts.append((write_part(path, tensors, len(inside)), inside))
        return Written(server, tuple(parts))

    def _path(self, kind: str, suffix: str = "") -> Path:
        return self.folder / f"{self._name(kind)}{suffix}.safetensors"

    def _name(self, kind: str) -> str:
        """The beginning of the names of files that this rank writes after this round."""
        rank = f"-{self.loop.comm.rank}of{self.loop.comm.world}" if kind == "clients" else ""
        return f"{self.loop.server.round:08d}-{kind}{rank}"

    def _remove_new(self) -> None:
        """Remove a failed attempt, because attempts would fill a nearly full disk."""
        names = [f"{self._name('clients')}*"]
        if self.loop.comm.rank == 0:
            manifest = manifest_path(self.folder, self.loop.server.round).name
            names += [manifest, f"{self._name('server')}*"]
        with suppress(OSError):
            for path in [path for name in names for path in self.folder.glob(name)]:
                path.unlink(missing_ok=True)

    def _new_slot(self, old: Slot, answers: list[Written]) -> Slot:
        """The slot `old` after this checkpoint."""
        server = answers[0].server
        assert server is not None, "rank 0 has written it"
        files, clients = place(old.files, old.clients, server, [part for one in answers for part in one.clients])
        return Slot(clients, files, self.loop.server.round)

    def _complete(self, old: Slot, new: Slot) -> str | None:
        """On rank 0, when all files are complete: write the manifest, then remove files no longer needed."""
        loop = self.loop
        manifest = Manifest(
            torch=str(torch.__version__),
            round=loop.server.round,
            seed=loop.seed,
            rng=derive_seed(loop.seed, "checkpoint", loop.server.round),
            layout=loop.server.layout.fingerprint(),
            data=self.data_fingerprint,
            config=self.config_text,
            files=new.files,
            clients=new.clients,
            history=contents.history_numbers(loop),
            events=list(self._results.events),
        )
        try:
            manifest.write(self.folder)
        except OSError as error:
            return self._failure(error)
        note_checkpoint(self.run_dir)
        kept = [new, *(slot for slot in self.slots if slot is not old)]
        remove_unneeded(self.folder, {name for slot in kept for name in slot.names(self.folder)})
        return None

    def _is_due(self) -> bool:
        """Asked on rank 0 only, because clocks differ."""
        config, passed = self.config, time.monotonic() - self._tried_at
        if not self.enabled:
            return False
        if config.every_rounds and self.loop.server.round % config.every_rounds == 0:
            return True
        return config.every_minutes > 0 and passed >= max(60 * config.every_minutes, self._cost / config.max_cost)

    def _failure(self, error: OSError | RunError) -> str:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return f"the checkpoint of round {self.loop.server.round} cannot be written to {self.folder}: {reason}"
