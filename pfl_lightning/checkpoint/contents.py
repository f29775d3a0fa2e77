"""The only place that knows which parts of the loop a checkpoint holds, and how they become named tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from pfl_lightning.callback import Callback
from pfl_lightning.checkpoint.manifest import Manifest
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.state import State
from pfl_lightning.monitor.snapshot import Snapshot

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop


def server_tensors(loop: FederatedFabricLoop, results: Snapshot, callbacks: State) -> State:
    """The global model, the initial model, the server's memory, the results of each client, metrics.csv, callbacks."""
    server = loop.server
    tensors = {"vector": server.vector, "initial": server.initial}
    tensors["metrics.csv"] = torch.from_numpy(np.frombuffer(bytearray(results.rows), dtype=np.uint8))
    tensors |= {f"memory/{name}": tensor for name, tensor in server.memory.items()}
    tensors |= {f"callbacks/{name}": tensor for name, tensor in callbacks.items()}
    return tensors | {f"history/{name}": torch.from_numpy(array) for name, array in loop.history.arrays().items()}


def data_fingerprint(data: FederatedData) -> str:
    """A short hash of the partition and of the values of all samples."""
    digest = hashlib.sha256(data.values_sha256().encode())
    for part in data.parts():
        digest.update(str(part.shape).encode() + part.tobytes())
    return digest.hexdigest()[:16]


def callback_states(callbacks: Sequence[Callback]) -> State:
    """The tensors of all callbacks. Collective: call it on every rank."""
    named = _named(callbacks).items()
    return {f"{name}/{key}": tensor for name, callback in named for key, tensor in callback.state_dict().items()}


def history_numbers(loop: FederatedFabricLoop) -> dict[str, Any]:
    """Totals, best and last values, as JSON."""
    return loop.history.numbers()


def trained_since_save(loop: FederatedFabricLoop) -> set[int]:
    """Clients whose state has changed since `note_saved`, the same on every rank."""
    return loop.store.changed


def note_saved(loop: FederatedFabricLoop) -> None:
    """Every change so far is in a checkpoint."""
    loop.store.changed = set()


def client_parts(
    loop: FederatedFabricLoop, clients: Iterable[int], part_bytes: int
) -> Iterator[tuple[set[int], dict[str, Tensor]]]:
    """Those of the `clients` whose state is on this rank, in groups of about `part_bytes` bytes."""
    inside: set[int] = set()
    tensors: dict[str, Tensor] = {}
    size = 0
    for client in sorted(client for client in clients if loop.store.home[client] == loop.comm.rank):
        state = loop.store.states[client]
        tensors |= {f"{client}/{name}": tensor for name, tensor in state.items()}
        inside.add(client)
        size += sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        if size >= part_bytes:
            yield inside, tensors
            inside, tensors, size = set(), {}, 0
    if inside:
        yield inside, tensors


def restore(loop: FederatedFabricLoop, callbacks: Sequence[Callback], manifest: Manifest, folder: Path) -> Snapshot:
    """Load a checkpoint and return the result files it had. The states of clients are spread over the present ranks."""
    server, device = loop.server, loop.server.vector.device
    tensors = load_file(folder / manifest.server.name)
    server.vector.copy_(tensors.pop("vector"))
    server.initial.copy_(tensors.pop("initial"))
    declared = server.memory
    memory = _under("memory/", tensors)
    server.memory = {n: t.to(declared[n].device if n in declared else device) for n, t in memory.items()}
    server.round = manifest.round
    loop.history.restore({n: t.numpy() for n, t in _under("history/", tensors).items()}, manifest.history)
    home = [-1] * len(manifest.clients)
    for place, client in enumerate(manifest.trained):
        home[client] = place % loop.comm.world
    loop.store.reset(home)
    for client, state in read_clients(manifest, folder, manifest.trained[loop.comm.rank :: loop.comm.world]):
        loop.store.states[client] = state
    for name, callback in _named(callbacks).items():
        if saved := _under(f"callbacks/{name}/", tensors):
            callback.load_state_dict(saved)
    return Snapshot(tensors["metrics.csv"].numpy().tobytes(), manifest.events)


def read_clients(manifest: Manifest, folder: Path, clients: Sequence[int]) -> Iterator[tuple[int, State]]:
    """The states of some clients, one by one. Each file is opened once."""
    inside: dict[int, set[int]] = {}
    for client in clients:
        inside.setdefault(manifest.clients[client], set()).add(client)
    for index, wanted in sorted(inside.items()):
        with safe_open(folder / manifest.files[index].name, framework="pt") as file:
            names: dict[int, list[str]] = {}
            for key in file.keys():  # noqa: SIM118 (not a dict)
                names.setdefault(int(key.split("/", 1)[0]), []).append(key)
            for client in wanted & names.keys():
                # copies, because each tensor would keep the whole file mapped
                yield client, {key.split("/", 1)[1]: file.get_tensor(key).clone() for key in names[client]}


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Callbacks by the name of their class. A number tells the second of a class from the first."""
    named: dict[str, Callback] = {}
    for callback in callbacks:
        name = type(callback).__name__
        named[f"{name}.{sum(key.split('.')[0] == name for key in named)}"] = callback
    return named


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
