"""How long, with whom and in what way to train: the settings of the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pfl_lightning.errors import require


@dataclass(frozen=True)
class LoopConfig:
    """How long and with whom to train."""

    rounds: int = 100
    """Number of federated rounds."""
    participation: float = 1.0
    """Share of the clients that take part in a round."""
    local_epochs: int = 1
    """Passes over a client's training data at a visit."""
    batch_size: int = 32
    """Samples per local step. A last batch of one sample joins the one before."""
    eval_every: int = 10
    """Every so many rounds, and after the last, all clients are evaluated; 0: never."""
    finetune_epochs: int = 0
    """At evaluations also test a throw-away copy of each client's model after this many epochs on its own data."""
    test_batch_size: int = 1024
    """Samples per forward pass in tests."""
    ranks_per_client: int = 1
    """So many ranks train a client together, each on its part of every batch: for large clients, fewer than ranks."""
    clients_per_step: int = 1
    """So many clients are trained at the same time by one rank, their gradients computed at once: for small models on a
    large GPU."""
    balance_by: Literal["auto", "seconds", "samples"] = "auto"
    """What is shared out evenly over the ranks: the seconds that clients took at earlier visits, or their samples.
    auto: seconds; with clients_per_step above 1 samples, so that the same clients are always trained together."""
    channels_last: bool = True
    """How images and the weights of convolutions lie in memory: with the channels last, which most nets are faster
    with, or in torch's plain order. Results differ by rounding."""
    compile: str | None = None
    """Backend of torch.compile for the net, such as inductor; null: the net is not compiled."""

    def __post_init__(self) -> None:
        """Check the settings."""
        require(0 < self.participation <= 1, "participation", self.participation, "a number above 0 and up to 1")
        least = {
            "rounds": 1,
            "local_epochs": 0,
            "batch_size": 1,
            "eval_every": 0,
            "finetune_epochs": 0,
            "test_batch_size": 1,
            "ranks_per_client": 1,
            "clients_per_step": 1,
        }
        for key, least_value in least.items():
            require(getattr(self, key) >= least_value, key, getattr(self, key), f"a whole number >= {least_value}")
        alone = self.clients_per_step == 1 or self.ranks_per_client == 1
        require(alone, "clients_per_step", self.clients_per_step, "1 with ranks_per_client above 1")
        choices = ("auto", "seconds", "samples")
        require(self.balance_by in choices, "balance_by", self.balance_by, " | ".join(choices))
        free = self.clients_per_step == 1 or self.balance_by != "seconds"
        require(free, "balance_by", self.balance_by, "auto or samples with clients_per_step above 1")

    @property
    def by_seconds(self) -> bool:
        """Whether ranks are balanced by measured seconds."""
        return self.balance_by != "samples" and self.clients_per_step == 1
