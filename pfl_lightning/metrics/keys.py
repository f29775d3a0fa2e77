"""The names of metric columns: which metric, of which model, over which clients, averaged how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

Moment = Literal["before", "after", "finetuned", "global", "validation"]
Scope = Literal["participants", "all", "held_out"]
Average = Literal["mean", "pooled", "worst10"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)
SCOPES: tuple[Scope, ...] = get_args(Scope)
AVERAGES: tuple[Average, ...] = get_args(Average)


class MetricKey(NamedTuple):
    """One column of metrics.csv that holds a metric."""

    metric: str
    """The task's name for it, such as `acc`."""
    moment: Moment
    """The tested model: before or after local training, a fine-tuned copy, or the plain global model. `validation`
    tests the model before training on validation samples."""
    scope: Scope = "participants"
    """The tested clients: those of the round, all that may take part, or those held out of training."""
    average: Average = "mean"
    """Mean over clients, pooled over all their samples, or mean over the worst tenth of the clients."""

    @property
    def column(self) -> str:
        """The name in metrics.csv: `acc_before`, `all_acc_before_pooled`, `all_global_acc`."""
        name = f"global_{self.metric}" if self.moment == "global" else f"{self.metric}_{self.moment}"
        prefix = "" if self.scope == "participants" else f"{self.scope}_"
        return prefix + name + ("" if self.average == "mean" else f"_{self.average}")


def all_keys(metrics: Iterable[str]) -> dict[str, MetricKey]:
    """Every possible column of these metrics and its key."""
    keys = [MetricKey(m, t, s, a) for m in metrics for t in MOMENTS for s in SCOPES for a in AVERAGES]
    return {key.column: key for key in keys}
