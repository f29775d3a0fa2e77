"""Learn2pFed: learn how far each parameter takes part in the collaboration, by unrolling ADMM. Lv et al., 2024."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts.admm_cell import CrossEntropy, Problem, Variables
from pfl_lightning.algorithms.parts.features import (
    features,
    learns_classes,
    linear_head,
    require_classifier,
    require_head,
)
from pfl_lightning.algorithms.parts.least_squares import LeastSquares
from pfl_lightning.algorithms.parts.unrolled import Participant, backward, gather_settings, learn, unroll
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.metrics import ledger
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from pfl_lightning.nets.linear_tail import replace_tail, start_layers
from pfl_lightning.nets.net import Net
from pfl_lightning.tasks import Task

Setting = Literal["Lambda", "rho", "eta", "gamma", "theta", "p"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
FLOAT64 = 2
"""The cells compute and send float64, which takes the bytes of two float32."""


@dataclass
class Learn2pFed(FedAvg):
    """A round is a pass through `cells` iterations of ADMM, each with one sum over the round's clients. On the way
    back every client learns its own settings from the sum of all training losses.

    It works on the last layer, which must be linear: v_i is the client's, w the server's. All before it is trained by
    each client alone and never leaves it.
    """

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in w, in addition to the learned p: its number of training samples, or the same for all."""
    cells: int = 10
    """Number L of iterations in a round."""
    tie_cells: bool = False
    """Whether all cells share their settings, instead of each having its own."""
    learnable: tuple[Setting, ...] = SETTINGS
    """The learned settings: Lambda (how much each parameter is held to w), rho, eta, gamma, theta (the steps
    of v, z, w and alpha), p (the client's weight in w)."""
    start_layer: str = "head"
    """Where it starts: the net's head, or a linear layer of its body such as body.fc2. One linear layer takes the place
    of that one and all that follow."""
    warm_start: bool = False
    """Whether the cells start where the latest ones ended, instead of from the initial model. For classification, where
    a cell is only one step of gradient descent."""
    initial_lambda: float = 1.0
    """Lambda before it is learned. 0, and not learned, is local training."""
    initial_rho: float = 1.0
    """rho, eta and gamma before they are learned."""
    initial_theta: float = 1.0
    """theta before it is learned. 1 is ADMM's own step, as alpha is the scaled multiplier."""
    lr: float = 0.01
    """Step of Adam, which learns the settings."""
    adam_eps: float = 1e-8
    """Adam's ε. Settings whose gradients are well below it hardly move, so noise does not move them."""
    inner_lr: float | None = None
    """Step of gradient descent for v in classification. null: each client's own, 1 / (½ mean ‖x‖² + initial_rho) for
    its features x, with which a step does not overshoot."""
    learn_share: float = 0.0
    """Fraction of a client's training samples that the settings are learned on, drawn again in every round. The cells
    then see only the rest, and a second pass with all samples gives the models. 0 learns on all training samples."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.cells >= 1, "cells", self.cells, "a whole number >= 1")
        known = set(self.learnable) <= set(SETTINGS)
        require(known, "learnable", list(self.learnable), f"some of {', '.join(SETTINGS)}")
        require(self.initial_lambda >= 0, "initial_lambda", self.initial_lambda, "a number >= 0")
        require(0 <= self.learn_share < 1, "learn_share", self.learn_share, "a number from 0 to below 1")
        for key in ("initial_rho", "initial_theta", "lr", "adam_eps"):
            require(getattr(self, key) > 0, key, getattr(self, key), "a number > 0")
        require(self.inner_lr is None or self.inner_lr > 0, "inner_lr", self.inner_lr, "a number > 0, or null")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        if learns_classes(task, data):
            require_classifier(task, data, "Learn2pFed")
        require(isinstance(task.head, nn.Linear), "task.head", type(task.head).__name__, "a linear layer")
        require_head(task, data, "Learn2pFed", linear=False)
        layers = start_layers(task.net) if isinstance(task.net, Net) else ["head"]
        require(self.start_layer in layers, "algorithm.start_layer", self.start_layer, " | ".join(layers))

    @override
    def modify_model(self, task: Task) -> None:
        if isinstance(task.net, Net):
            replace_tail(task.net, self.start_layer)

    @override
    def init_server(self, client: ClientModule, server: Server) -> None:
        head = masks.by_module(client.task, client.layout, client.task.head)
        server.memory["head"] = head.nonzero().flatten()

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        head = server.memory["head"]
        client.mask.fill_(True)
        client.mask[head] = False
        initial = self.initial_settings(len(head), head.device)
        client.memory |= {name: initial[name] for name in self.learnable}
        client.memory |= {
            f"{name} moments": torch.zeros_like(initial[name].expand(2, -1, -1)) for name in self.learnable
        }

    def initial_settings(self, size: int, device: torch.device) -> dict[str, Tensor]:
        """All settings before they are learned: Lambda [cells, d], the others [cells, 1]. One cell if they are tied."""
        cells = 1 if self.tie_cells else self.cells
        values = dict.fromkeys(cast(tuple[str, ...], SETTINGS), self.initial_rho) | {
            "theta": self.initial_theta,
            "p": 1.0,
        }
        settings = {name: torch.full((cells, 1), value, dtype=torch.float64) for name, value in values.items()}
        settings["Lambda"] = torch.full((cells, size), self.initial_lambda, dtype=torch.float64)
        return {name: value.to(device) for name, value in settings.items()}

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if "v" in client.memory:
            client.vector[server.memory["head"]] = client.memory["v"].to(client.vector.dtype)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        head = set(client.task.head.parameters())
        if any(p not in head for p in client.task.parameters()):
            with client.freezing([client.task.head]):
                client.train_epochs()

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        head, memory = server.memory["head"], client.memory
        w = (server.vector if self.warm_start else server.initial)[head].double()
        start = Variables(w, torch.zeros_like(w), torch.zeros_like(w), w)
        if self.warm_start and "v" in memory:
            start = Variables(memory["v"], memory["z"], memory["alpha"], w)
        values = {name: memory[name].clone() for key in self.learnable for name in (key, f"{key} moments")}
        x, y = features(client)
        problem = self.problem(client, x, y)
        if not client.samples_seen:  # nothing is before the last layer: the loss is that of the tested model
            client.record_step(problem.loss(client.vector[head].double()), (x, y))
        split = self.split(client, x, y) if self.learn_share else None
        participant = Participant(values, client.weight, problem, start, client.visits, split)
        # each cell sends the sum v − z − α, and on the way back the gradient of each w received
        sent = FLOAT64 * ledger.dense_bytes(len(head) * (self.passes * self.cells + self.steps_back))
        return Upload(client.id, {}, client.weight, extra={"participant": participant}, bytes=sent)

    @property
    def passes(self) -> int:
        """How often a round goes through the cells."""
        return 2 if self.learn_share and self.learnable else 1

    @property
    def steps_back(self) -> int:
        """The cells of a round whose sums get a gradient."""
        return self.cells - 1 if self.learnable else 0

    def problem(self, client: ClientModule, x: Tensor, y: Tensor) -> Problem:
        """The client's own loss as a function of its last layer, on samples with features x and targets y."""
        layer = linear_head(client)
        if learns_classes(client.task, client.data):
            lr = safe_step(x, layer.bias is not None, self.initial_rho) if self.inner_lr is None else self.inner_lr
            return CrossEntropy(x, y, layer.out_features, lr)
        bias = layer.bias is not None
        return LeastSquares(torch.cat([x, torch.ones_like(x[:, :1])], 1) if bias else x, y.view(len(x), -1), bias)

    def split(self, client: ClientModule, x: Tensor, y: Tensor) -> tuple[Problem, Problem]:
        """The problem of the cells and that of learning, on two parts of the samples. Both on all if there is one."""
        shuffle = torch.Generator().manual_seed(derive_seed(client.seed, "learn", client.round, client.id))
        order = torch.randperm(len(x), generator=shuffle).to(x.device)
        count = min(max(1, round(self.learn_share * len(x))), len(x) - 1)
        parts = (order[count:], order[:count]) if count else (order, order)
        seen, held = (self.problem(client, x[part], y[part]) for part in parts)
        return seen, held

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        participants: list[Participant] = [upload.extra["participant"] for upload in uploads.local.values()]
        head = server.memory["head"]
        settings = gather_settings(participants, self.initial_settings(len(head), head.device), self.learnable)
        end = self.run_cells(participants, settings, uploads, server.initial[head].double().zero_())
        news = learn(participants, settings, self.learnable, self.lr, self.adam_eps)
        news |= {"v": end.v.detach(), "z": end.z.detach(), "alpha": end.alpha.detach()}
        # all have the same w. The mean brings it to ranks without clients, and finds clients that have diverged
        ends = {client: torch.cat([end.v[i], end.w[i]]) for i, client in enumerate(uploads.local)}
        now = server.vector[head].double().repeat(2)
        server.vector[head] = uploads.combine(ends, now)[len(head) :].to(server.vector.dtype)
        return [(c, Reply({name: rows[i] for name, rows in news.items()})) for i, c in enumerate(uploads.local)]

    def run_cells(
        self, participants: list[Participant], settings: dict[str, Tensor], uploads: Uploads, zero: Tensor
    ) -> Variables:
        """Pass through the cells and back. Returns where a pass with all samples ends."""
        if self.passes == 1:
            end = unroll(participants, settings, self.cells, uploads, zero)
            backward([participant.problem for participant in participants], end)
            return end
        parts = [participant.split for participant in participants if participant.split]
        seen = unroll(participants, settings, self.cells, uploads, zero, [cells for cells, _ in parts])
        backward([held for _, held in parts], seen)
        with torch.no_grad():
            return unroll(participants, settings, self.cells, uploads, zero)

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """The w that each cell starts from (the initial one is known), and on the way back a gradient for each sum."""
        received = self.passes * (self.cells - 1) + self.warm_start + self.steps_back
        return FLOAT64 * ledger.dense_bytes(len(server.memory["head"]) * received)


def safe_step(x: Tensor, bias: bool, rho: float) -> Tensor:
    """A step of gradient descent that does not overshoot, for a linear layer with cross-entropy on features x [n, k].

    The loss of a sample has no curvature above ½ ‖x‖², with the 1 of the bias in x, and the pull to w has rho.
    """
    squares = x.double().square().sum(1).mean() if len(x) else x.new_zeros((), dtype=torch.float64)
    return 1 / ((squares + bias) / 2 + rho)
