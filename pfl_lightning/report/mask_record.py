"""The masks of a run: the last one of each client, and how often each parameter was personal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor
from typing_extensions import override

from pfl_lightning.callback import Callback
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.foundation.tensor_files import write_tensors
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.model import masks
from pfl_lightning.model.layout import Layout, Span

if TYPE_CHECKING:
    from pfl_lightning.engine.engine import VisitResult
    from pfl_lightning.loop import FederatedFabricLoop

MASKS_FILE = "masks.safetensors"


@dataclass
class MaskHistory:
    """The masks of a run. Rows are clients, columns parameters."""

    layout: Layout
    """Where each tensor lies among the columns. Parameters only."""
    last: Tensor
    """The personal parameters at each client's latest visit, bool [clients, P]."""
    counts: Tensor
    """At how many visits each parameter was personal (critical), int32 [clients, P]."""
    visits: Tensor
    """How often each client was visited, int64 [clients]."""
    server: Tensor
    """In how many rounds each global parameter was not zero, int32 [P]."""
    rounds: int
    label_counts: Tensor
    """Training samples of each class at each client, int64 [clients, classes]."""

    def columns(self, layer: str) -> Tensor:
        """The parameters of a tensor or module such as "net.head", bool [P]."""
        return masks.by_prefix(self.layout, [layer], "layer")

    def save(self, path: Path) -> None:
        """Write one safetensors file. The layout goes into its metadata."""
        tensors = {
            "last": torch.stack([masks.pack(row) for row in self.last]),
            "counts": self.counts,
            "visits": self.visits,
            "server": self.server,
            "label_counts": self.label_counts.cpu().contiguous(),
        }
        spans = [(span.name, span.start, span.stop, list(span.shape)) for span in self.layout.spans]
        order = {"channels_last": str(self.layout.channels_last)}
        write_tensors(path, tensors, {"spans": json.dumps(spans), "rounds": str(self.rounds), **order})

    @classmethod
    def load(cls, path: Path) -> MaskHistory:
        """Read a file of `save`."""
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        spans = tuple(Span(n, low, high, torch.Size(shape)) for n, low, high, shape in json.loads(about["spans"]))
        layout = Layout(spans, spans[-1].stop, about.get("channels_last", "True") == "True")
        parts["last"] = torch.stack([masks.unpack(row, layout.size) for row in parts["last"]])
        return cls(layout=layout, rounds=int(about["rounds"]), **parts)


class MaskRecorder(Callback):
    """Counts personal parameters during a run and writes a `MaskHistory`, masks.safetensors, at its end.

    It holds one number for every parameter of every client on every rank, which is fine for nets of the papers' size
    and dozens of clients. Checkpoints save the counts, so a resumed run has all of them.

    Args:
        folder: the file goes there after the last round.
        loop: the run.
    """

    def __init__(self, folder: Path, loop: FederatedFabricLoop) -> None:
        self.folder, self.loop = folder, loop
        clients, layout = loop.data.num_clients, loop.server.layout
        self.counts = torch.zeros(clients + 1, layout.num_parameters, dtype=torch.int32)
        self.visits = torch.zeros(clients + 1, dtype=torch.int64)
        self.last = torch.zeros(clients, (layout.size + 7) // 8, dtype=torch.uint8)
        self._pending: dict[int, Tensor] = {}

    @override
    def on_round_start(self, round_: int) -> None:
        self._pending = {}

    @override
    def on_visit_end(self, result: VisitResult) -> None:
        self._pending[result.client] = masks.pack(result.mask).cpu()

    @override
    def on_round_end(self, record: RoundRecord) -> None:
        """Count the entries that this rank's clients keep after the round."""
        layout = self.loop.server.layout
        for client in record.cohort:
            self.last[client] = self._pending.get(client, torch.zeros_like(self.last[client]))
        for client, mask in self._pending.items():
            self.counts[client] += masks.unpack(mask, layout.size)[: layout.num_parameters]
            self.visits[client] += 1
        if self.loop.comm.rank == 0:
            self.counts[-1] += self.loop.server.theta.cpu() != 0
            self.visits[-1] += 1

    @override
    def on_fit_end(self, summary: dict[str, Any]) -> None:
        history = self.history()
        self.loop.comm.run_on_rank_zero(lambda: self._write(history))

    @override
    def state_dict(self) -> dict[str, Tensor]:
        names = ("counts", "visits", "last")
        return {name: self.loop.comm.all_sum(getattr(self, name).clone()) for name in names}

    @override
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if self.loop.comm.rank == 0:  # the counts are added up over the ranks
            self.counts, self.visits, self.last = state["counts"], state["visits"], state["last"]

    def _write(self, history: MaskHistory) -> None:
        try:
            history.save(self.folder / MASKS_FILE)
        except OSError as error:
            raise RunError(f"report.masks: cannot write to {self.folder}: {error}") from error

    def history(self) -> MaskHistory:
        """The counts of all ranks so far. Collective: call it on every rank."""
        loop = self.loop
        state, layout = self.state_dict(), loop.server.layout
        counts, visits = state["counts"], state["visits"]
        last = torch.stack([masks.unpack(row, layout.size)[: layout.num_parameters] for row in state["last"]])
        spans = loop.server.layout.parameter_spans
        return MaskHistory(
            Layout(spans, loop.server.layout.num_parameters, loop.server.layout.channels_last),
            last,
            counts[:-1].contiguous(),
            visits[:-1].contiguous(),
            counts[-1].contiguous(),
            int(visits[-1]),
            loop.data.label_counts(),
        )
