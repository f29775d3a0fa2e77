"""Learn2pFed: learn how far each parameter takes part in the collaboration, by unrolling ADMM. Lv et al., 2024."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning import ledger, masks
from pfl_lightning.algorithm import Replies, Server
from pfl_lightning.algorithms.admm_cell import CrossEntropy, LeastSquares, Problem, Variables
from pfl_lightning.algorithms.features import features, linear_head
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.unrolled import Visit, backward, gather_settings, learn, unroll
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload
from pfl_lightning.nets.cut import cut, places
from pfl_lightning.nets.net import Net
from pfl_lightning.tasks import Classification, Regression, Task

Setting = Literal["Lambda", "rho", "eta", "gamma", "theta", "p"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
DOUBLE = 2  # the cells compute and send float64: two float32 each


@dataclass
class Learn2pFed(FedAvg):
    """A round is a pass through `cells` iterations of ADMM, each with one sum over the round's clients. On the way
    back every client learns its own settings from the sum of all training losses.

    It works on the last layer, which must be linear: v_i is the client's, w the server's. All before it is trained by
    each client alone and never leaves it.
    """

    partial_upload = True

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in w besides the learned p: its number of training samples, or the same for all."""
    cells: int = 10
    """Number L of iterations in a round."""
    tie_cells: bool = False
    """Whether all cells share their settings, instead of each having its own."""
    learnable: tuple[Setting, ...] = SETTINGS
    """The settings that are learned: Lambda (how much each parameter is held to w), rho, eta, gamma, theta (the steps
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
    inner_lr: float = 0.1
    """Step of gradient descent for v in classification."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.cells >= 1, "cells", self.cells, "a whole number >= 1")
        known = set(self.learnable) <= set(SETTINGS)
        require(known, "learnable", list(self.learnable), f"some of {', '.join(SETTINGS)}")
        require(self.initial_lambda >= 0, "initial_lambda", self.initial_lambda, "a number >= 0")
        for key in ("initial_rho", "initial_theta", "lr", "adam_eps", "inner_lr"):
            require(getattr(self, key) > 0, key, getattr(self, key), "a number > 0")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        known = isinstance(task, (Classification, Regression))
        require(known, "task", type(task).__name__, "Classification, Regression or Forecasting")
        require(isinstance(task.net, Net), "task.net", type(task.net).__name__, "a net with a body and a head")
        require(isinstance(task.net.head, nn.Linear), "task.net", type(task.net).__name__, "one with a linear head")
        require(
            self.start_layer in places(task.net),
            "algorithm.start_layer",
            self.start_layer,
            " | ".join(places(task.net)),
        )

    @override
    def adapt(self, task: Task) -> None:
        cut(task.net, self.start_layer)

    @override
    def begin(self, client: ClientModule, server: Server) -> None:
        head = masks.by_module(client.task, client.layout, client.task.net.head)
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
        """All settings before they are learned: Lambda [cells, d], the others [cells, 1]; one cell if they are tied."""
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
        net = client.task.net
        if any(True for _ in net.body.parameters()):
            with client.freezing([net.head]):
                client.train_epochs()
            return
        with torch.no_grad():
            for batch in client.batches("loss"):
                client.note(client.task.training_step(batch), batch)

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        head, memory = server.memory["head"], client.memory
        w = (server.vector if self.warm_start else server.initial)[head].double()
        start = Variables(w, torch.zeros_like(w), torch.zeros_like(w), w)
        if self.warm_start and "v" in memory:
            start = Variables(memory["v"], memory["z"], memory["alpha"], w)
        values = {name: memory[name].clone() for key in self.learnable for name in (key, f"{key} moments")}
        problem = self.problem(client)
        return Visit(client.id, values, client.weight, problem=problem, start=start, visits=client.visits)

    def problem(self, client: ClientModule) -> Problem:
        """The client's own loss as a function of its last layer."""
        layer, (x, y) = linear_head(client), features(client)
        if isinstance(client.task, Classification):
            return CrossEntropy(x, y, layer.out_features, self.inner_lr)
        bias = layer.bias is not None
        return LeastSquares(torch.cat([x, torch.ones_like(x[:, :1])], 1) if bias else x, y.view(len(x), -1), bias)

    @override
    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies | None:
        visits, head = [cast(Visit, upload) for upload in uploads], server.memory["head"]
        settings = gather_settings(visits, self.initial_settings(len(head), head.device), self.learnable)
        end = unroll(visits, settings, self.cells, comm, server.initial[head].double().zero_())
        backward(visits, end)
        news = learn(visits, settings, self.learnable, self.lr, self.adam_eps)
        news |= {"v": end.v.detach(), "z": end.z.detach(), "alpha": end.alpha.detach()}
        replies = {visit.client: {name: rows[i] for name, rows in news.items()} for i, visit in enumerate(visits)}
        # all have the same w; the mean brings it to ranks without clients, and finds those that have diverged
        ends = (Upload(v.client, {"v": end.v[i], "w": end.w[i]}, v.weight) for i, v in enumerate(visits))
        now = server.vector[head].double()
        server.vector[head] = comm.mean(ends, {"v": now, "w": now})["w"].to(server.vector.dtype)
        return replies

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """The w that each cell starts from (the initial one is known), and on the way back a gradient for each sum."""
        back = self.cells - 1 if self.learnable else 0
        return DOUBLE * ledger.dense_bytes(len(server.memory["head"]) * (self.cells - (not self.warm_start) + back))

    @override
    def up_bytes(self, client: ClientModule, upload: Upload) -> int:
        """The sum v − z − α of each cell, and on the way back the gradient of each w that was received."""
        back = self.cells - 1 if self.learnable else 0
        return DOUBLE * ledger.dense_bytes(int((~client.mask).count_nonzero()) * (self.cells + back))
