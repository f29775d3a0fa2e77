"""The live models of a loop, and a client loaded into one outside a round."""

from __future__ import annotations

from pfl_lightning.engine.visit import load_client
from pfl_lightning.foundation.state import State
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.model.client import MEMORY, ClientModule


def open_client(loop: FederatedFabricLoop, client: int, module: ClientModule | None = None) -> ClientModule:
    """Load a client with its state, as at the start of a visit."""
    module = module or loop.engine.client
    load_client(module, client, loop.store.get(client), loop.algorithm, loop.server)
    return module


def live_models(loop: FederatedFabricLoop) -> list[ClientModule]:
    """All live models of this rank: several with `clients_per_step`, otherwise one."""
    return list(getattr(loop.engine, "clients", [loop.engine.client]))


def memory_of(loop: FederatedFabricLoop, client: int) -> State:
    """The algorithm's entries in a client's stored state, by the names that the algorithm gave them."""
    state = loop.store.states[client]
    return {name.removeprefix(MEMORY): value for name, value in state.items() if name.startswith(MEMORY)}
