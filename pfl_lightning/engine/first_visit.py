"""The first visit of a client that takes part in no round: what the method would make of it in the next one."""

from __future__ import annotations

from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.engine.engine import Invitation
from pfl_lightning.engine.visit import naming_divergence, start_visit
from pfl_lightning.model.client import ClientModule


def train_first_visit(live: ClientModule, client: int, algorithm: Algorithm, server: Server) -> Tensor:
    """Train a client without a state for one visit. Nothing is sent to the server. Returns the sums of its test.

    Args:
        live: the live model. It holds the client's model afterwards.
        client: its number in `live.data`.
        algorithm: how clients cooperate.
        server: the server as it is now. The visit belongs to the next round and works on a copy.
    """
    next_server = server.next_round()
    with naming_divergence(live):
        start_visit(live, Invitation(client, 0.0, None), algorithm, next_server)
        algorithm.fit(live, next_server)
        live.visits += 1
        return algorithm.test(live, next_server)
