"""A client's visit, from download to upload."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server, Upload
from pfl_lightning.comm.exact_mean import is_finite
from pfl_lightning.comm.uploads import diverged_text
from pfl_lightning.engine.engine import Invitation, VisitResult
from pfl_lightning.engine.stopwatch import Stopwatch
from pfl_lightning.engine.visit_checks import check_mask, check_sums, check_visit
from pfl_lightning.foundation.errors import ConfigError, DivergedError, RunError
from pfl_lightning.foundation.state import State
from pfl_lightning.metrics.visit_report import VisitReport
from pfl_lightning.model.client import MEMORY, ClientModule
from pfl_lightning.model.masks import NotFiniteError, layer_counts


def visit(client: ClientModule, invitation: Invitation, algorithm: Algorithm, server: Server) -> VisitResult:
    """Train one client on the live model `client`. A visit changes nothing outside its result."""
    with naming_divergence(client):
        start = start_visit(client, invitation, algorithm, server)
        before = test_participant(client, algorithm, server).clone()
        start.watch.lap("test")
        algorithm.fit(client, server)
        client.visits += 1
        start.watch.lap("fit")
        after = test_participant(client, algorithm, server)
        start.watch.lap("test")
        return end_visit(client, start, before, after, algorithm, server)


@contextmanager
def naming_divergence(client: ClientModule) -> Iterator[None]:
    """Name the client if a computation fails because its model, or what follows from it, is not finite any more."""
    try:
        yield
    except (ValueError, ArithmeticError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        if not isinstance(error, NotFiniteError):
            if isinstance(error, ConfigError | RunError) or bool(client.vector.isfinite().all()):
                raise
            reason = f"its model is not finite ({reason})"
        failure = DivergedError(diverged_text(client.id, client.round, reason))
        failure.collective = False  # this rank alone knows it
        raise failure from error


class Start(NamedTuple):
    """The facts of a visit before its first test."""

    personal: Tensor
    """Personal entries of each parameter tensor."""
    down_bytes: int
    watch: Stopwatch


def load_client(client: ClientModule, number: int, state: State | None, algorithm: Algorithm, server: Server) -> None:
    """Let the live model become client `number`. A client at its first visit is set up."""
    client.load_state(number, server.round, state, server.initial)
    if not client.visits:
        algorithm.setup(client, server)
        check_mask(client, algorithm)


def accept(client: ClientModule, invitation: Invitation, algorithm: Algorithm, server: Server) -> None:
    """Load the invited client."""
    load_client(client, invitation.client, invitation.state, algorithm, server)
    client.weight = invitation.weight


def start_visit(client: ClientModule, invitation: Invitation, algorithm: Algorithm, server: Server) -> Start:
    """Load the client and run `download`."""
    watch = Stopwatch(client.vector.device)
    accept(client, invitation, algorithm, server)
    algorithm.download(client, server)
    personal = layer_counts(client.mask, client.layout)
    down_bytes = algorithm.down_bytes(client, server)
    watch.lap("download")
    return Start(personal, down_bytes, watch)


def test_participant(client: ClientModule, algorithm: Algorithm, server: Server) -> Tensor:
    """The sums of the client's test. In a round without tests (`loop.test_every`) they are zeros."""
    if is_tested(client):
        return check_sums(algorithm.test(client, server), client, algorithm)
    return torch.zeros(len(client.task.sums), dtype=torch.float64, device=client.vector.device)


def is_tested(client: ClientModule) -> bool:
    """Whether this round tests its participants (`loop.test_every`)."""
    return client.local.tests is None or client.local.tests(client.round)


class Ending(NamedTuple):
    """A visit that is over, before its numbers are read from the device."""

    client: int
    state: State
    upload: Upload
    mask: Tensor
    start: Start
    samples: int
    numbers: list[Tensor]
    """Sums of both tests, personal entries, logged sums, the loss, and the counts of the upload."""

    def result(self, numbers: Sequence[list[float]]) -> VisitResult:
        """The result, given the values of `numbers`."""
        before, after, personal, logged, (loss,), *sent = numbers
        phases = self.start.watch.read()
        report = VisitReport(
            before=before,
            after=after,
            personal=[int(count) for count in personal],
            logged=logged,
            loss_sum=loss,
            samples=self.samples,
            up_bytes=self.upload.count_bytes([number for (number,) in sent]),
            down_bytes=self.start.down_bytes,
            seconds=sum(phases.values()),
        )
        diverged = _divergence(report, self.state)
        return VisitResult(self.client, self.state, self.upload, report, self.mask, phases, diverged)


def end_visit(
    client: ClientModule, start: Start, before: Tensor, after: Tensor, algorithm: Algorithm, server: Server
) -> VisitResult:
    """Take out the client's upload, report and state, given the sums of its tests before and after training."""
    mask = client.mask.clone()  # `upload` may clear it
    upload = algorithm.upload(client, server)
    (result,) = read_results([take_out(client, start, before, after, algorithm, upload, mask)])
    return result


def take_out(
    client: ClientModule,
    start: Start,
    before: Tensor,
    after: Tensor,
    algorithm: Algorithm,
    upload: Upload,
    mask: Tensor,
) -> Ending:
    """Take out the client's state, and all that its report is made of."""
    check_visit(client, upload, algorithm)
    upload = _without_aliases(upload, client)
    state = client.dump_state()
    start.watch.lap("upload")
    logged, loss = client.task.trained.sums(client.vector.device), client.loss_total[None]
    counts = [count[None] for count in upload.count_sent()]
    numbers = [before, after, start.personal, logged, loss, *counts]
    return Ending(client.id, state, upload, mask, start, client.samples_seen, numbers)


def read_results(endings: Sequence[Ending]) -> list[VisitResult]:
    """The results of some visits. The host waits for a GPU once."""
    numbers = read([tensor for ending in endings for tensor in ending.numbers])
    results: list[VisitResult] = []
    for ending in endings:
        own, numbers = numbers[: len(ending.numbers)], numbers[len(ending.numbers) :]
        results.append(ending.result(own))
    return results


def read(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The numbers in some small tensors. The host waits for a GPU once."""
    if not any(tensor.is_cuda for tensor in tensors):
        return [tensor.tolist() for tensor in tensors]
    device = next(tensor.device for tensor in tensors if tensor.is_cuda)
    flat = torch.cat([tensor.double().to(device) for tensor in tensors]).tolist()
    ends = list(itertools.accumulate(len(tensor) for tensor in tensors))
    return [flat[end - len(tensor) : end] for tensor, end in zip(tensors, ends, strict=True)]


def _divergence(report: VisitReport, state: State) -> str | None:
    """A sign of divergence in the results of a visit. Uploads are checked when they are averaged."""
    for moment, sums in {"before": report.before, "after": report.after}.items():
        if not all(map(math.isfinite, sums)):
            return f"the test of its model {moment} training gives NaN or infinity"
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(is_finite(tensor)):
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
