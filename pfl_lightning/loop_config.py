"""The settings of the loop: rounds, participation, local training and evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from pfl_lightning.foundation.errors import require

PARTS = ("all", "head", "body")
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@dataclass(frozen=True)
class LoopConfig:
    """Rounds, participation, local training and evaluation."""

    rounds: int = 100
    """Number of federated rounds."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""
    local_epochs: int = 1
    """Epochs on a client's training data at each visit."""
    batch_size: int = 32
    """Samples per local step. A last batch of one sample joins the batch before it."""
    eval_every: int = 10
    """Evaluate all clients every N rounds and after the last one. 0 disables evaluation."""
    eval_clients: int | float | None = None
    """Clients that an evaluation tests: a number such as 1000, or a fraction such as 0.01. They are drawn once from the
    run's seed. null: all clients."""
    test_every: int = 1
    """Test participants before and after their training every N rounds and in the last one. 0 disables these tests."""
    finetune_epochs: int = 0
    """Epochs for a throw-away copy of each client's model, which evaluations then test as well. 0 disables it."""
    finetune_lr: float | None = None
    """Learning rate of fine-tuning. null: the optimizer's, or the one of the method."""
    finetune_part: Literal["all", "head", "body"] | None = None
    """Part of the model that fine-tuning changes. null: all, or the part that the method fine-tunes."""
    lr_schedule: Literal["constant", "cosine"] | list[tuple[int, float]] = "constant"
    """Learning rate over the rounds: constant, cosine (from the full rate to almost 0 in the last round), or a list of
    [round, factor], where each factor holds from its round on. Methods with rates of their own (pFedMe) keep those."""
    test_batch_size: int = 1024
    """Samples per forward pass in tests."""
    ranks_per_client: int = 1
    """Number of ranks that train one client together, splitting each batch. Useful when clients are large and fewer
    than ranks."""
    clients_per_step: int = 1
    """Number of clients that one rank trains at the same time, computing their gradients together. Useful for small
    models on a large GPU."""
    balance_by: Literal["auto", "seconds", "samples"] = "auto"
    """Balance the ranks by the measured seconds of earlier visits, or by samples. auto: seconds, but samples with
    clients_per_step above 1, so that the same clients always train together."""
    channels_last: bool = True
    """Store images and convolution weights with the channels last, which is faster for most nets, or in torch's default
    order. Results differ by rounding."""
    compile: str | None = None
    """Backend of torch.compile for the net, such as inductor. null disables compilation."""
    compile_mode: CompileMode = "default"
    """Mode of the backend inductor. reduce-overhead uses CUDA graphs, for small models on GPUs."""

    def __post_init__(self) -> None:
        """Check the settings."""
        require(0 < self.participation <= 1, "participation", self.participation, "a number above 0 and up to 1")
        least = {
            "rounds": 1,
            "local_epochs": 0,
            "batch_size": 1,
            "eval_every": 0,
            "test_every": 0,
            "finetune_epochs": 0,
            "test_batch_size": 1,
            "ranks_per_client": 1,
            "clients_per_step": 1,
        }
        for key, least_value in least.items():
            value = getattr(self, key)
            require(_is_whole(value) and value >= least_value, key, value, f"a whole number >= {least_value}")
        alone = self.clients_per_step == 1 or self.ranks_per_client == 1
        require(alone, "clients_per_step", self.clients_per_step, "1 with ranks_per_client above 1")
        sample = self.eval_clients
        fine = sample is None or (_is_whole(sample) and sample >= 1) or (isinstance(sample, float) and 0 < sample <= 1)
        require(fine, "eval_clients", sample, "a whole number >= 1, a fraction above 0 and up to 1, or null")
        self._check_rates()
        modes = get_args(CompileMode)
        require(self.compile_mode in modes, "compile_mode", self.compile_mode, " | ".join(modes))
        plain = self.compile_mode == "default" or self.compile == "inductor"
        require(plain, "compile_mode", self.compile_mode, "default, or compile: inductor, the backend that has modes")
        choices = ("auto", "seconds", "samples")
        require(self.balance_by in choices, "balance_by", self.balance_by, " | ".join(choices))
        free = self.clients_per_step == 1 or self.balance_by != "seconds"
        require(free, "balance_by", self.balance_by, "auto or samples with clients_per_step above 1")

    def _check_rates(self) -> None:
        rate = self.finetune_lr
        require(rate is None or rate > 0, "finetune_lr", rate, "a number above 0, or null")
        require(
            self.finetune_part in (None, *PARTS), "finetune_part", self.finetune_part, " | ".join(PARTS) + " | null"
        )
        schedule = self.lr_schedule
        allowed = "constant, cosine or a list of [round, factor] with rising rounds and factors >= 0"
        if isinstance(schedule, str):
            require(schedule in ("constant", "cosine"), "lr_schedule", schedule, allowed)
            return
        rounds = [round_ for round_, _ in schedule]
        fine = rounds == sorted(set(rounds)) and all(r >= 1 for r in rounds) and all(f >= 0 for _, f in schedule)
        require(fine, "lr_schedule", [list(pair) for pair in schedule], allowed)

    def lr_factor(self, round_: int) -> float:
        """The factor of the learning rate in a round, which counts from 1."""
        if self.lr_schedule == "constant":
            return 1.0
        if self.lr_schedule == "cosine":
            done = min(max(round_ - 1, 0), self.rounds - 1) / self.rounds
            return (1 + math.cos(math.pi * done)) / 2
        return next((float(factor) for start, factor in reversed(self.lr_schedule) if round_ >= int(start)), 1.0)

    def evaluates(self, round_: int) -> bool:
        """Whether all clients are evaluated after a round."""
        return self._is_due(self.eval_every, round_)

    def tests(self, round_: int) -> bool:
        """Whether participants are tested in a round."""
        return self._is_due(self.test_every, round_)

    def _is_due(self, every: int, round_: int) -> bool:
        return every > 0 and (round_ % every == 0 or round_ == self.rounds)

    @property
    def by_seconds(self) -> bool:
        """Whether ranks are balanced by measured seconds."""
        return self.balance_by != "samples" and self.clients_per_step == 1


def _is_whole(value: object) -> bool:
    """Whether a setting, which Python may give any value, is a whole number."""
    return isinstance(value, Integral) and not isinstance(value, bool)
