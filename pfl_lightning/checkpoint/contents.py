"""What is in a checkpoint's files: the loop's state as named tensors, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from pfl_lightning.checkpoint.manifest import Manifest
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.store import State

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop


def server_tensors(loop: FederatedFabricLoop) -> dict[str, Tensor]:
    """The global model, where it started, what the server remembers, and the record of the clients so far."""
    server = loop.server
    tensors = {"vector": server.vector, "initial": server.initial}
    tensors |= {f"memory/{name}": tensor for name, tensor in server.memory.items()}
    tensors |= {f"history/{name}": torch.from_numpy(array) for name, array in loop.history.arrays().items()}
    # copies, since tensors that share memory cannot be written
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def client_tensors(loop: FederatedFabricLoop, clients: Iterable[int]) -> dict[str, Tensor]:
    """The states of clients that live on this rank."""
    states = loop.store.states
    return {f"{client}/{name}": t.contiguous() for client in sorted(clients) for name, t in states[client].items()}


def data_fingerprint(data: FederatedData) -> str:
    """A short hash of who has what: other clients cannot continue a run."""
    return hashlib.sha256(b"".join(array.tobytes() for array in data.parts())).hexdigest()[:16]


def restore(loop: FederatedFabricLoop, manifest: Manifest, folder: Path) -> None:
    """Make the loop what it was. The clients are dealt to the ranks that there are now, alike on every rank."""
    server, device = loop.server, loop.server.vector.device
    tensors = load_file(folder / manifest.files[manifest.server].name)
    server.vector.copy_(tensors.pop("vector"))
    server.initial.copy_(tensors.pop("initial"))
    declared = server.memory
    memory = _under("memory/", tensors)
    server.memory = {n: t.to(declared[n].device if n in declared else device) for n, t in memory.items()}
    server.round = manifest.round
    loop.history.restore({n: t.numpy() for n, t in _under("history/", tensors).items()}, manifest.history)
    trained = [client for client, file in enumerate(manifest.clients) if file >= 0]
    home = {client: place % loop.comm.world for place, client in enumerate(trained)}
    loop.store.home = [home.get(client, -1) for client in range(len(manifest.clients))]
    mine = [client for client in trained if home[client] == loop.comm.rank]
    loop.store.states = read_clients(manifest, folder, mine)
    loop.store.pending, loop.store.changed = {}, set()


def read_clients(manifest: Manifest, folder: Path, clients: Sequence[int]) -> dict[int, State]:
    """The states of some clients; each file is opened once."""
    states: dict[int, State] = {client: {} for client in clients}
    for index in sorted({manifest.clients[client] for client in clients}):
        with safe_open(folder / manifest.files[index].name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (it is no dict)
                client, name = key.split("/", 1)
                if int(client) in states and manifest.clients[int(client)] == index:
                    states[int(client)][name] = file.get_tensor(key).clone()  # it would keep the whole file mapped
    return states


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
