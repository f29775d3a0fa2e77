"""FedSelect: the parameters that move most become personal, more each round. Tamirisa et al., CVPR 2024."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.metrics import ledger
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.layout import Layout, Span
from pfl_lightning.tasks.task import Task


@dataclass
class FedSelect(FedAvg):
    """Each client grows its own set of personal parameters. The server averages each of the others over the clients
    for which it is still global. A local epoch is a pass over the data that trains the personal parameters, then one
    that trains the global ones. alpha = 0 is FedAvg with equal weights. alpha = 1 ends as local training.
    """

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of an entry: the same for all, or its number of training samples."""
    bn_buffers: Literal["average", "local"] = "local"
    """BatchNorm's running statistics: kept by each client, or averaged like parameters."""
    p: float = 0.25
    """Share of the still global parameters that become personal at a visit. Above 0, up to 1."""
    alpha: float = 0.3
    """Largest share of personal parameters. From 0 to 1."""
    overshoot: bool = False
    """Whether alpha may be exceeded by the last growth, as in the authors' code, which only checks it before growing:
    with p = 0.25 their 0.05, 0.30, 0.50 and 0.80 end at 25, 43.75, 57.8 and 82.2 % personal."""
    delta: Literal["visit", "update"] = "visit"
    """The change to rank: of this visit, or (authors' code) between the models after this training and after the
    one at which the client last selected; before the first selection, from the common initial model."""
    personal_lr: float | None = None
    """Learning rate γ_v of the passes over personal parameters. null: the optimizer's."""
    global_lr: float | None = None
    """Learning rate γ_u of the passes over global parameters. null: the optimizer's."""
    selection: Literal["per_tensor", "whole_model"] = "per_tensor"
    """Whether p and alpha are fractions of each tensor or of the whole model."""
    choose: Literal["most", "least", "random"] = "most"
    """Take the parameters that moved most; or, for ablations, least, or any."""
    layers: list[str] | None = None
    """Ablation: exactly these modules are personal, from the start (e.g. [net.head]). Nothing is selected."""
    update_every: int = 1
    """Number of visits between two selections of a client. The authors' code has 3."""
    biases: bool = True
    """Whether tensors named bias may become personal. In the authors' code they never do."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.p <= 1, "p", self.p, "a number above 0 and up to 1")
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "a number from 0 to 1")
        require(
            self.selection in ("per_tensor", "whole_model"), "selection", self.selection, "per_tensor or whole_model"
        )
        require(self.choose in ("most", "least", "random"), "choose", self.choose, "most, least or random")
        require(self.delta in ("visit", "update"), "delta", self.delta, "visit or update")
        for key in ("personal_lr", "global_lr"):
            rate = getattr(self, key)
            require(rate is None or rate > 0, key, rate, "a number above 0, or null")
        require(self.update_every >= 1, "update_every", self.update_every, "a whole number >= 1")
        if self.layers is not None and not self.layers:
            raise ConfigError("layers: the list is empty; name the modules to keep personal, or leave it out")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        masks.by_prefix(Layout.of(task), self.layers or [], "algorithm.layers")

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        client.mask |= masks.by_prefix(client.layout, self.layers or []).to(client.mask.device)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        """Entries that became personal at the last visit were averaged once more, so they start from the server's
        values.
        """
        super().download(client, server)
        if "added" in client.memory:
            client.mask[: client.layout.num_parameters] |= self.added(client)

    def added(self, client: ClientModule) -> Tensor:
        """The entries that became personal at the last visit, bool [P]."""
        return masks.unpack(client.memory["added"], client.layout.num_parameters)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        start = client.theta.clone()
        self.alternate(client)
        client.memory.pop("added", None)
        if self.layers is None and (client.visits + 1) % self.update_every == 0:
            personal = client.mask[: len(start)]
            reference = start if self.delta == "visit" else client.memory.get("reference", server.initial[: len(start)])
            added = self.grow(personal, self.score(client, reference), client.layout) & ~personal
            if added.any():
                client.memory["added"] = masks.pack(added)
            if self.delta == "update":
                client.memory["reference"] = client.theta.clone()

    def alternate(self, client: ClientModule) -> None:
        """LocalAlt: per epoch a pass for the personal entries, then one over the same batches for the others.

        A pass over no entries is skipped. The rest is plain training, with one optimizer for all epochs.
        """
        personal = client.mask[: client.layout.num_parameters].clone()
        personal_lr, global_lr = self.rate(client, self.personal_lr), self.rate(client, self.global_lr)
        if personal.all() or not personal.any():
            client.train_epochs(lr=personal_lr if personal.all() else global_lr)
            return
        for epoch in range(client.local.epochs):
            client.train_epochs(1, entries=personal, stream=f"{epoch}.", lr=personal_lr)
            client.train_epochs(1, entries=~personal, stream=f"{epoch}.", lr=global_lr)

    def rate(self, client: ClientModule, rate: float | None) -> float | None:
        """A rate of this method in the present round: `loop.lr_schedule` holds for it, too."""
        return None if rate is None else rate * client.rate_factor

    def score(self, client: ClientModule, reference: Tensor) -> Tensor:
        """Personalization score of each parameter [P], the larger the more personal, against an earlier model [P]."""
        if self.choose == "random":
            seed = derive_seed(client.seed, "select", client.round, client.id)
            return torch.rand(len(reference), generator=torch.Generator().manual_seed(seed)).to(reference.device)
        moved = scores.gradient(reference, client.theta).nan_to_num_(nan=math.inf)
        return moved if self.choose == "most" else -moved

    def grow(self, personal: Tensor, score: Tensor, layout: Layout) -> Tensor:
        """GradSelect: the personal parameters from the next visit on, bool [P]."""
        spans = [s for s in layout.parameter_spans if self.biases or s.name.rpartition(".")[2] != "bias"]
        if self.selection == "per_tensor":
            return grow(personal, score, self.p, self.alpha, spans, self.overshoot)
        inside = layout.where((span.name for span in spans), score.device)[: len(score)]
        grown = personal.clone()
        grown[inside] = grow(personal[inside], score[inside], self.p, self.alpha, overshoot=self.overshoot)
        return grown

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """The server can derive a client's selection from the values it sent and got back, so no mask travels."""
        sent = ~client.mask
        if "added" in client.memory:
            sent[: client.layout.num_parameters] |= self.added(client)
        return ledger.dense_bytes(int(sent.sum()))


def grow(
    mask: Tensor,
    scores: Tensor,
    rate: float,
    limit: float,
    spans: Sequence[Span] | None = None,
    overshoot: bool = False,
) -> Tensor:
    """The mask and, of the entries it lacks, those with the largest scores (FedSelect).

    Each tensor, or the whole vector when `spans` is None, gets the fraction `rate` of the entries it lacks. The number
    is rounded up so that small tensors grow too, but never beyond floor(limit n). With `overshoot` a tensor grows
    whenever its share is not above the limit yet, and may then pass it.
    """
    grown, ranges = mask.clone(), masks.ranges(scores, spans)
    counts = [mask[start:stop].count_nonzero() for start, stop in ranges]
    kept = torch.stack(counts).tolist() if counts else []  # the host waits for a GPU once
    for (start, stop), personal in zip(ranges, kept, strict=True):
        free, lacking = ~mask[start:stop], stop - start - personal
        room = masks.floor_of(limit, stop - start, "limit") - personal
        if overshoot and room >= 0:
            room = lacking
        count = min(room, math.ceil(Fraction(repr(float(rate))) * lacking))
        if count > 0:
            grown[start:stop][free] = masks.largest(scores[start:stop][free], count)
    return grown
