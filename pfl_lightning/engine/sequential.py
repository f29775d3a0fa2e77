"""The default engine, one client after the other, and a client's visit from download to upload."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm, Server, Upload
from pfl_lightning.comm.collectives import Comm
from pfl_lightning.comm.uploads import diverged_text
from pfl_lightning.engine.cohort import Plan, assign
from pfl_lightning.engine.engine import Engine, Invitation, VisitResult
from pfl_lightning.foundation.errors import ConfigError, DivergedError, RunError
from pfl_lightning.foundation.state import State
from pfl_lightning.metrics.visit_report import VisitReport
from pfl_lightning.model import masks
from pfl_lightning.model.client import MEMORY, ClientModule


class Sequential(Engine):
    """One client after the other.

    Args:
        client: the live model of this rank.
        algorithm: how clients cooperate.
        comm: the ranks.
    """

    def __init__(self, client: ClientModule, algorithm: Algorithm, comm: Comm) -> None:
        self.client, self.algorithm, self.comm = client, algorithm, comm

    @override
    def plan(self, cohort: Sequence[int], costs: Sequence[float], homes: Sequence[int]) -> Plan:
        return Plan(assign(cohort, costs, self.comm.world, homes))

    @override
    def run(self, plan: Plan, invite: Callable[[int], Invitation], server: Server) -> Iterator[VisitResult]:
        for client in plan.clients_of[self.comm.rank]:
            yield visit(self.client, invite(client), self.algorithm, server)


def visit(client: ClientModule, invitation: Invitation, algorithm: Algorithm, server: Server) -> VisitResult:
    """Train one client on the live model `client`. A visit changes nothing outside its result."""
    with naming_divergence(client):
        start = start_visit(client, invitation, algorithm, server)
        fit_started = perf_counter()
        algorithm.fit(client, server)
        return end_visit(client, start, perf_counter() - fit_started, algorithm, server)


@contextmanager
def naming_divergence(client: ClientModule) -> Iterator[None]:
    """Name the client if a computation fails because its model is not finite any more."""
    try:
        yield
    except (ValueError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, ConfigError | RunError) or bool(client.vector.isfinite().all()):
            raise
        reason = str(error).strip().partition("\n")[0]
        failure = DivergedError(diverged_text(client.id, client.round, f"its model is not finite ({reason})"))
        failure.collective = False  # this rank alone knows it
        raise failure from error


class Start(NamedTuple):
    """The facts of a visit before training."""

    before: list[float]
    personal: list[int]
    down_bytes: int
    download_seconds: float
    test_seconds: float


def load_client(client: ClientModule, number: int, state: State | None, algorithm: Algorithm, server: Server) -> None:
    """Let the live model become client `number`. A client at its first visit is set up."""
    client.load_state(number, server.round, state, server.initial)
    if not client.visits:
        algorithm.setup(client, server)


def start_visit(client: ClientModule, invitation: Invitation, algorithm: Algorithm, server: Server) -> Start:
    """Load the client, run `download`, and test the starting model."""
    started = perf_counter()
    load_client(client, invitation.client, invitation.state, algorithm, server)
    client.weight = invitation.weight
    algorithm.download(client, server)
    counts = [client.mask[span.start : span.stop].count_nonzero() for span in client.layout.parameter_spans]
    personal = torch.stack(counts).tolist() if counts else []
    down_bytes = algorithm.down_bytes(client, server)
    downloaded = perf_counter()
    before = algorithm.test(client, server).tolist()
    return Start(before, personal, down_bytes, downloaded - started, perf_counter() - downloaded)


def end_visit(
    client: ClientModule, start: Start, fit_seconds: float, algorithm: Algorithm, server: Server
) -> VisitResult:
    """Test the trained model, and take out the client's upload, report and state."""
    trained = perf_counter()
    client.visits += 1
    after = algorithm.test(client, server).tolist()
    tested = perf_counter()
    mask = masks.pack(client.mask)
    upload = _without_aliases(algorithm.upload(client, server), client)
    state = client.dump_state()
    phases = {
        "download": start.download_seconds,
        "test": start.test_seconds + tested - trained,
        "fit": fit_seconds,
        "upload": perf_counter() - tested,
    }
    report = VisitReport(
        before=start.before,
        after=after,
        personal=start.personal,
        loss_sum=float(client.loss_total),
        samples=client.samples_seen,
        up_bytes=upload.count_bytes(),
        down_bytes=start.down_bytes,
        seconds=sum(phases.values()),
    )
    return VisitResult(client.id, state, upload, report, mask, phases, _divergence(report, state))


def _divergence(report: VisitReport, state: State) -> str | None:
    """A sign of divergence in the results of a visit. Uploads are checked when they are averaged."""
    for moment, sums in {"before": report.before, "after": report.after}.items():
        if not all(map(math.isfinite, sums)):
            return f"the test of its model {moment} training gives NaN or infinity"
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"its {name.removeprefix(MEMORY)} state has a value that is NaN or infinite"
    return None


def _without_aliases(upload: Upload, client: ClientModule) -> Upload:
    """Copy the tensors that share memory with the live model, which the next client overwrites."""
    live = {tensor.untyped_storage().data_ptr() for tensor in (client.vector, client.grad, client.mask)}
    for tensors in (upload.values, upload.sends, upload.extra):
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() in live:
                tensors[name] = tensor.detach().clone()
    return upload
