"""Tests of all clients, each with the model it would start from now and with the global model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.engine.first_visit import train_first_visit
from pfl_lightning.engine.shared_tests import (
    can_share,
    group_clients,
    may_start_from_server,
    starts_from_server,
    test_together,
)
from pfl_lightning.engine.visit import load_client
from pfl_lightning.foundation.errors import DivergedError
from pfl_lightning.foundation.state import State
from pfl_lightning.metrics.history import EVALUATED
from pfl_lightning.model.client import ClientModule

BEFORE, FINETUNED, GLOBAL, VALIDATION, AFTER = map(
    EVALUATED.index, ("before", "finetuned", "global", "validation", "after")
)


def evaluate_clients(
    client: ClientModule,
    algorithm: Algorithm,
    server: Server,
    clients: Sequence[int],
    home: Sequence[int],
    state_of: Callable[[int], State | None],
    comm: Comm,
    finetune_epochs: int,
    visited: Collection[int] = (),
) -> Tensor:
    """The sums of the tests of all `clients` for each model in `EVALUATED`, float64 [clients, moments, sums].

    Args:
        client: the live model of this rank.
        algorithm: how clients cooperate.
        server: the server with the global model.
        clients: the clients to test.
        home: the rank that holds the state of each client, -1 for none.
        state_of: returns the state of a client tested on this rank.
        comm: the ranks.
        finetune_epochs: epochs of a throw-away copy of each client's model. 0: none is made.
        visited: clients without a state that are trained for one visit and tested again. Only the test is kept.
    """
    table = torch.zeros(len(clients), len(EVALUATED), len(client.task.sums), dtype=torch.float64)
    if client.tests_may_share is None:
        client.tests_may_share = can_share(client, server.initial)
    shared = client.tests_may_share
    may_start = shared and may_start_from_server(algorithm, client)
    plain = torch.zeros(len(clients), dtype=torch.float64)  # 1: the client's own model is the global one
    for row, number in clients_to_evaluate(clients, home, comm.rank, comm.world):
        state, known = state_of(number), {GLOBAL} if shared else set()
        if may_start and starts_from_server(state):
            plain[row] = 1.0
            known.add(BEFORE)
        if BEFORE not in known or finetune_epochs or client.data.validation_sizes[number]:
            table[row] = evaluate_client(client, number, state, algorithm, server, finetune_epochs, known)
        if number in visited:
            table[row, AFTER] = _after_first_visit(client, number, algorithm, server)
    if shared:
        for rows in list(group_clients(client, clients))[comm.rank :: comm.world]:
            table[rows, GLOBAL] = test_together(client, clients[rows], server)
    comm.merge_table(table)
    if may_start:
        same = comm.merge_table(plain) > 0
        table[same, BEFORE] = table[same, GLOBAL]
    return table


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
    client: ClientModule,
    number: int,
    state: State | None,
    algorithm: Algorithm,
    server: Server,
    finetune_epochs: int,
    known: Collection[int] = (),
) -> Tensor:
    """The sums of the client's test for each model in `EVALUATED` but the `known` ones, float64 [moments, sums]."""
    sums = torch.zeros(len(EVALUATED), len(client.task.sums), dtype=torch.float64)
    load_client(client, number, state, algorithm, server)
    algorithm.personalize(client, server)
    if BEFORE not in known:
        sums[BEFORE] = algorithm.test(client, server)
    if VALIDATION not in known and len(validation := client.data.validation_indices(number)):
        sums[VALIDATION] = client.test_on(validation)
    if finetune_epochs:
        finetune(client, algorithm, server, finetune_epochs)
        sums[FINETUNED] = algorithm.test(client, server)
    if GLOBAL not in known:
        client.vector.copy_(server.vector)
        sums[GLOBAL] = client.test()
    return sums


def _after_first_visit(client: ClientModule, number: int, algorithm: Algorithm, server: Server) -> Tensor:
    """The sums of the test after one visit. NaN if the client diverges, which must not end a run without it."""
    try:
        return train_first_visit(client, number, algorithm, server)
    except DivergedError:
        return torch.full((len(client.task.sums),), torch.nan, dtype=torch.float64)


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
