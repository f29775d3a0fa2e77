"""Tests of all clients, each with the model it would start from now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.engine.sequential import load_client
from pfl_lightning.foundation.state import State
from pfl_lightning.metrics.history import EVALUATED
from pfl_lightning.model.client import ClientModule


def clients_to_evaluate(
    clients: Sequence[int], home: Sequence[int], rank: int, world: int
) -> Iterator[tuple[int, int]]:
    """The clients that this rank tests, each with its place among `clients`.

    Clients are tested on the rank of their state. Those without one are spread over the ranks.
    """
    homeless = 0
    for place, client in enumerate(clients):
        where = home[client]
        if where == -1:
            where = homeless % world
            homeless += 1
        if where == rank:
            yield place, client


def evaluate_client(
    client: ClientModule, number: int, state: State | None, algorithm: Algorithm, server: Server, finetune_epochs: int
) -> Tensor:
    """The sums of the client's test for each model in `EVALUATED`, float64 [moments, sums]."""
    sums = torch.zeros(len(EVALUATED), len(client.task.sums), dtype=torch.float64)
    load_client(client, number, state, algorithm, server)
    algorithm.personalize(client, server)
    sums[0] = algorithm.test(client, server)
    if len(validation := client.data.validation_indices(number)):
        sums[3] = client.test_on(validation)
    if finetune_epochs:
        finetune(client, algorithm, server, finetune_epochs)
        sums[1] = algorithm.test(client, server)
    client.vector.copy_(server.vector)
    sums[2] = client.test()
    return sums


def finetune(client: ClientModule, algorithm: Algorithm, server: Server, epochs: int) -> None:
    """Fine-tune the live model: as the method does, or the part and with the rate that the settings name."""
    part, task = client.local.finetune_part, client.task
    client.rate_factor, client.finetune_rate = 1.0, client.local.finetune_lr
    if part is None:
        algorithm.finetune(client, server, epochs)
    else:
        with client.only([task.head]) if part == "head" else client.freezing([task.head] if part == "body" else []):
            client.train_epochs(epochs)
    client.finetune_rate = None
