"""Tests of the global model: the samples of many clients share a batch, and the sums are taken apart afterwards.

A batch of 30 samples takes a device not much less time than one of 256, and every client would need a copy of the
model. The groups depend on the clients alone, not on the ranks, so that any number of ranks gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.foundation.state import State
from pfl_lightning.model.client import ClientModule

SHARED_SAMPLES = 256
"""The most samples of a group of several clients. More gain little, and fewer groups would leave ranks idle."""
TRIAL_SAMPLES = 4
TOLERANCE = 0.02


def group_clients(client: ClientModule, numbers: Sequence[int]) -> Iterator[slice]:
    """Cut a list of clients into groups of neighbours that share batches. A large client is a group alone."""
    limit = min(SHARED_SAMPLES, client.local.test_batch_size)
    start = total = 0
    for place, size in enumerate(client.data.test_sizes[torch.tensor(numbers)].tolist()):
        if place > start and total + size > limit:
            yield slice(start, place)
            start, total = place, 0
        total += size
    yield slice(start, len(numbers))


def test_together(client: ClientModule, numbers: Sequence[int], server: Server) -> Tensor:
    """The sums of the global model on the test samples of some clients, float64 [clients, sums]."""
    client.load_state(numbers[0], server.round, None, server.vector)
    return client.test_each([client.data.test_indices(number) for number in numbers])


def can_share(client: ClientModule, initial: Tensor) -> bool:
    """Whether samples of several clients may share a batch: the sums of one must not depend on the others.

    A few samples are tried with the initial model, so every rank and every resumed run finds the same answer.
    """
    if not client.task.has_sample_sums or len(client.data.samples.y) < TRIAL_SAMPLES:
        return False
    client.load_state(0, 0, None, initial)
    half = torch.arange(TRIAL_SAMPLES).chunk(2)
    together = client.test_each(half)
    apart = torch.stack([client.test_on(samples).cpu() for samples in half])
    return torch.allclose(together, apart, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def may_start_from_server(algorithm: Algorithm, client: ClientModule) -> bool:
    """Whether a client of this method that keeps no personal entry starts from the plain global model."""
    names = ("setup", "download", "personalize", "test")
    plain = all(getattr(type(algorithm), name) is getattr(Algorithm, name) for name in names)
    return plain and (algorithm.bn_buffers == "average" or client.layout.size == client.layout.num_parameters)


def starts_from_server(state: State | None) -> bool:
    """Whether a client keeps no personal entry."""
    return state is None or "mask" not in state
