"""What a run's masks were: the last one of each client, and how often each parameter was personal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pfl_lightning import masks
from pfl_lightning.atomic import replacing, share
from pfl_lightning.errors import RunError
from pfl_lightning.vector import Layout, Span

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop

FILE = "masks.safetensors"


@dataclass
class MaskHistory:
    """The masks of a run. Rows are clients, columns parameters."""

    layout: Layout
    """Where each tensor lies among the columns; parameters only."""
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
        """Write one safetensors file; the layout goes into its metadata."""
        tensors = {
            "last": torch.stack([masks.pack(row) for row in self.last]),
            "counts": self.counts,
            "visits": self.visits,
            "server": self.server,
            "label_counts": self.label_counts.cpu().contiguous(),
        }
        spans = [(span.name, span.start, span.stop, list(span.shape)) for span in self.layout.spans]
        order = {"channels_last": str(self.layout.channels_last)}
        save_file(tensors, path, {"spans": json.dumps(spans), "rounds": str(self.rounds), **order})
        share(path)

    @classmethod
    def load(cls, path: Path) -> MaskHistory:
        """Read what `save` wrote."""
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        spans = tuple(Span(n, low, high, torch.Size(shape)) for n, low, high, shape in json.loads(about["spans"]))
        layout = Layout(spans, spans[-1].stop, about.get("channels_last", "True") == "True")
        parts["last"] = torch.stack([masks.unpack(row, layout.size) for row in parts["last"]])
        return cls(layout=layout, rounds=int(about["rounds"]), **parts)


class MaskRecorder:
    """Follows a run as one of its `on_round_end` hooks and leaves a `MaskHistory`, masks.safetensors, at its end.

    It holds a number for every parameter of every client on every rank: for nets of the papers' size and dozens of
    clients. It counts from where it was started, so a resumed run counts the rest only.

    Args:
        folder: where the file goes after the last round, and the pictures with it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts, self.visits = torch.zeros(0), torch.zeros(0)

    def __call__(self, loop: FederatedFabricLoop) -> None:
        """Count what this rank's clients keep after the round."""
        size = loop.server.layout.num_parameters
        if not len(self.counts):
            self.counts = torch.zeros(loop.data.num_clients + 1, size, dtype=torch.int32)
            self.visits = torch.zeros(loop.data.num_clients + 1, dtype=torch.int64)
        for client in loop.comm.cohort:
            if loop.comm.owner[client] == loop.comm.rank:
                self.counts[client] += client_mask(loop, client)
                self.visits[client] += 1
        if loop.comm.rank == 0:
            self.counts[-1] += loop.server.theta.cpu() != 0
            self.visits[-1] += 1
        if loop.server.round == loop.config.rounds:
            history = self.history(loop)
            loop.comm.on_first(lambda: self._write(history))

    def _write(self, history: MaskHistory) -> None:
        from pfl_lightning.report.mask_figures import draw_masks  # matplotlib takes a second to import

        try:
            with replacing(self.folder / FILE) as aside:
                history.save(aside)
            draw_masks(history, self.folder, "net.head")
        except (OSError, SafetensorError) as error:
            raise RunError(f"report.masks: cannot write to {self.folder}: {error}") from error

    def history(self, loop: FederatedFabricLoop) -> MaskHistory:
        """What was counted so far on all ranks; every rank must ask."""
        last = torch.zeros(loop.data.num_clients, loop.server.layout.num_parameters, dtype=torch.uint8)
        for client in loop.store.states:
            last[client] = client_mask(loop, client)
        counts, visits, last = (loop.comm.all_sum(tensor.clone()) for tensor in (self.counts, self.visits, last))
        spans = loop.server.layout.parameter_spans
        return MaskHistory(
            Layout(spans, loop.server.layout.num_parameters, loop.server.layout.channels_last),
            last.bool(),
            counts[:-1].contiguous(),
            visits[:-1].contiguous(),
            counts[-1].contiguous(),
            int(visits[-1]),
            loop.data.label_counts(),
        )


def client_mask(loop: FederatedFabricLoop, client: int) -> Tensor:
    """The personal parameters of a client whose state is on this rank, bool [P]."""
    state, layout = loop.store.states[client], loop.server.layout
    if "mask" not in state:
        return torch.zeros(layout.num_parameters, dtype=torch.bool)
    return masks.unpack(state["mask"], layout.size)[: layout.num_parameters]
