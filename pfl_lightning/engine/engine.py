"""The interface of an engine: how a rank works through its clients.

There are three: `Sequential` (the default), `Vectorized` (`loop.clients_per_step`) and `Teams`
(`loop.ranks_per_client`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from pfl_lightning.algorithm import Server, Upload
from pfl_lightning.engine.cohort import Plan
from pfl_lightning.foundation.state import State
from pfl_lightning.metrics.visit_report import VisitReport
from pfl_lightning.model.client import ClientModule


class Invitation(NamedTuple):
    """A client that takes part in the round."""

    client: int
    weight: float
    """Its fraction of the total weight of the round."""
    state: State | None
    """The state from its last visit. None: it was never trained."""


@dataclass(frozen=True)
class VisitResult:
    """All that a visit leaves."""

    client: int
    state: State
    upload: Upload
    report: VisitReport
    mask: Tensor
    """The client's mask after training, bool [S]."""
    phases: dict[str, float]
    """Seconds of each phase of the visit."""
    diverged: str | None = None
    """The sign that the client has diverged, if any."""


class Engine(Protocol):
    """Trains the clients of a rank."""

    client: ClientModule
    """A live model for tests and evaluations."""

    def plan(self, cohort: Sequence[int], costs: Sequence[float], homes: Sequence[int]) -> Plan:
        """Which rank trains which clients.

        Args:
            cohort: the clients of the round.
            costs: the expected duration of each visit, in any unit.
            homes: the rank that holds the state of each client, -1 for none.
        """

    def run(self, plan: Plan, invite: Callable[[int], Invitation], server: Server) -> Iterator[Sequence[VisitResult]]:
        """Train the clients of this rank and yield the results, of one client or of several at a time.

        Args:
            plan: who trains whom.
            invite: returns a client's weight and state. It is asked when the visit starts.
            server: the server that the clients download from.
        """
