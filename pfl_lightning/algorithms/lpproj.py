"""lp-proj: clients agree only in a small random subspace of their models. Lin, Han, Li, Zhang, NeurIPS 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Server, Upload, Uploads
from pfl_lightning.algorithms.local import Local
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.metrics import ledger
from pfl_lightning.model.client import ClientModule


@dataclass
class LpProj(Local):
    """Own objective f(θ) + λ ‖u − Pθ‖_1, or λ/2 ‖u − Pθ‖², where u [dim] is all that travels and the rows of P [dim, P]
    are the same random directions for all. θ takes `inner_steps` steps of the task's optimizer, then u_i takes one.

    The server never overwrites θ. λ = 0 is Local.
    """

    lam: float = 15.0
    """Strength λ of the penalty. With p = 1 each step moves every entry of u_i by lr · lam."""
    dim: int = 10
    """Size of the subspace: numbers that travel each way."""
    p: Literal[1, 2] = 1
    """The norm of the penalty: sum of absolute values, or half the squared length."""
    lr: float = 0.1
    """Learning rate of u_i."""
    inner_steps: int = 20
    """K: steps of θ before each step of u_i."""
    outer_steps: int | None = 5
    """R: steps of u_i at a visit, with K steps of θ each. null: as many as `loop.local_epochs` gives."""
    beta: float = 1.0
    """How far the server goes from its u to the mean of the clients'."""
    orthogonal: bool = False
    """Make the rows of P orthogonal to each other; else they are only of length 1."""
    clip: float = 60.0
    """Largest length of the task's gradient; longer ones are shortened. The penalty's is not."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.p in (1, 2), "p", self.p, "1 or 2")
        for key in ("lam", "lr"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "a number >= 0")
        for key in ("beta", "clip"):
            require(getattr(self, key) > 0, key, getattr(self, key), "a number above 0")
        for key in ("dim", "inner_steps"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "a whole number >= 1")
        require((self.outer_steps or 0) >= 0, "outer_steps", self.outer_steps, "a whole number >= 0, or null")

    def projection(self, client: ClientModule) -> Tensor:
        """P [dim, P], the same for every client and round."""
        random = torch.Generator().manual_seed(derive_seed(client.seed, "projection"))
        rows = torch.randn(self.dim, client.layout.num_parameters, generator=random)
        unit: Tensor = torch.linalg.qr(rows.T).Q.T if self.orthogonal else rows / rows.norm(dim=1, keepdim=True)
        return unit.to(client.vector.device)

    def common(self, server: Server) -> Tensor:
        """The server's u [dim]. It starts at 0."""
        return server.memory.get("u", torch.zeros(self.dim, device=server.vector.device))

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        steps = None if self.outer_steps is None else self.outer_steps * self.inner_steps
        client.memory["u"] = self.train(client, server, steps=steps)

    @override
    def finetune(self, client: ClientModule, server: Server, epochs: int) -> None:
        self.train(client, server, epochs=epochs)

    def train(
        self, client: ClientModule, server: Server, epochs: int | None = None, steps: int | None = None
    ) -> Tensor:
        """Train θ and a copy of u, which is returned."""
        rows, u, done = self.projection(client), self.common(server).clone(), 0

        def slope() -> Tensor:
            gap = u - rows @ client.theta
            return gap.sign() if self.p == 1 else gap

        def on_gradient() -> None:
            nonlocal done
            if done and done % self.inner_steps == 0:
                u.sub_(slope(), alpha=self.lr * self.lam)
            client.grad.mul_((self.clip / client.grad.norm()).clamp(max=1.0))
            client.grad.sub_(rows.T @ slope(), alpha=self.lam)
            done += 1

        client.train_epochs(epochs, on_gradient=on_gradient, steps=steps)
        return u.sub_(slope(), alpha=self.lr * self.lam) if done else u

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        return Upload(client.id, {"u": client.memory.pop("u")}, client.weight)

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        u = self.common(server)
        server.memory["u"] = torch.lerp(u, uploads.mean({"u": u})["u"], self.beta)
        return None

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        return ledger.dense_bytes(self.dim)
