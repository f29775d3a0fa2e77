"""What is in a checkpoint's files: the loop's state as named tensors, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
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


def client_parts(
    loop: FederatedFabricLoop, clients: Iterable[int], part_bytes: int
) -> Iterator[tuple[set[int], dict[str, Tensor]]]:
    """The states of clients that live on this rank, so many at a time that they have about `part_bytes` bytes."""
    inside: set[int] = set()
    tensors: dict[str, Tensor] = {}
    size = 0
    for client in sorted(clients):
        state = loop.store.states[client]
        tensors |= {f"{client}/{name}": tensor.contiguous() for name, tensor in state.items()}
        inside.add(client)
        size += sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        if size >= part_bytes:
            yield inside, tensors
            inside, tensors, size = set(), {}, 0
    if inside:
        yield inside, tensors


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
    home = [-1] * len(manifest.clients)
    for place, client in enumerate(trained):
        home[client] = place % loop.comm.world
    loop.store.begin_anew(home)
    for client, state in read_clients(manifest, folder, trained[loop.comm.rank :: loop.comm.world]):
        loop.store.states[client] = state


def read_clients(manifest: Manifest, folder: Path, clients: Sequence[int]) -> Iterator[tuple[int, State]]:
    """The states of some clients, one by one; each file is opened once."""
    inside: dict[int, set[int]] = {}
    for client in clients:
        inside.setdefault(manifest.clients[client], set()).add(client)
    for index, wanted in sorted(inside.items()):
        with safe_open(folder / manifest.files[index].name, framework="pt") as file:
            names: dict[int, list[str]] = {}
            for key in file.keys():  # noqa: SIM118 (it is no dict)
                names.setdefault(int(key.split("/", 1)[0]), []).append(key)
            for client in wanted & names.keys():
                # copies, since each would keep the whole file mapped
                yield client, {key.split("/", 1)[1]: file.get_tensor(key).clone() for key in names[client]}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
