"""Mistakes in an algorithm that a round shows. Each one ends the run with one line."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from numbers import Integral

import torch
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Replies, Reply, Server, Upload
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.foundation.errors import AlgorithmError, ConfigError
from pfl_lightning.model.client import ClientModule

FORMER_NAMES = {
    "adapt": "modify_model",
    "begin": "init_server",
    "invites_all": "select_cohort",
    "partial_upload": "exchange",
    "travels": "exchange",
    "uploads_personal": "exchange",
}
"""Steps and flags of version 0.1, and the steps that replace them."""
CONTAINERS = (MutableMapping, MutableSequence, MutableSet)


class RoundGuard:
    """Notices a visit that changes the server, and any step that changes the algorithm itself.

    Ranks would not share such a change, and checkpoints would not save it. (`Algorithm` refuses new attributes by
    itself. This is about lists, dicts and tensors changed in place.)

    Args:
        algorithm: the algorithm, before the visits of a round.
        server: the server, before the visits of a round.
    """

    def __init__(self, algorithm: Algorithm, server: Server) -> None:
        self.algorithm, self.server = algorithm, server
        self._held, self._kept = _versions(server), _contents(algorithm)
        self._form, self._round = _form(server.vector), server.round

    def check_server(self) -> None:
        """Called after the visits."""
        name = _first_difference(self._held, _versions(self.server))
        if name is not None:
            problem = f"changes server.{name} during a visit, which other ranks do not see; do it in aggregate"
            raise _error(self.algorithm, "", problem)

    def check_algorithm(self) -> None:
        """Called after `aggregate`."""
        name = _first_difference(self._kept, _contents(self.algorithm))
        if name is not None:
            problem = f"changes self.{name} during a run, which ranks do not share and checkpoints do not save"
            raise _error(self.algorithm, "", f"{problem}; use client.memory or server.memory")
        if (found := _form(self.server.vector)) != self._form:
            problem = f"makes server.vector {found}; it must be {self._form}; use server.vector.copy_"
            raise _error(self.algorithm, "aggregate", problem)
        if self.server.round != self._round:
            raise _error(self.algorithm, "aggregate", "changes server.round, which counts the rounds of the run")
        check_memory(self.server.memory, "server.memory", self.algorithm)


def check_names(algorithm: Algorithm) -> None:
    """Refuse steps under their names of version 0.1, which nobody would call."""
    for name, present in FORMER_NAMES.items():
        if hasattr(algorithm, name):
            raise ConfigError(f"algorithm: {_name(algorithm)} defines {name}, a name of version 0.1; use {present}")
    if "comm" in inspect.signature(algorithm.aggregate).parameters:
        raise ConfigError(f"algorithm: {_name(algorithm)}.aggregate takes comm, as in version 0.1; use uploads instead")


def check_visit(client: ClientModule, upload: Upload, algorithm: Algorithm) -> None:
    """Refuse an upload, a mask or a memory that the loop cannot use."""
    if not isinstance(upload, Upload):
        raise _error(algorithm, "upload", f"returns {_kind(upload)} instead of an Upload")
    if upload.client != client.id or not 0 <= upload.weight <= 1 + 1e-9:
        found = f"Upload({upload.client}, …, {upload.weight})"
        raise _error(algorithm, "upload", f"returns {found} for client {client.id}; use client.id and client.weight")
    for name, sends in upload.sends.items():
        if name in upload.values and sends.shape != upload.values[name].shape:
            raise _error(algorithm, "upload", f"has sends[{name!r}] that does not match values[{name!r}]")
    if client.vector is not client.live:
        raise _error(algorithm, "", "assigns client.vector, which disconnects it from the model; use copy_")
    check_mask(client, algorithm)
    check_memory(client.memory, "client.memory", algorithm)


def check_mask(client: ClientModule, algorithm: Algorithm) -> None:
    """Refuse a mask that does not fit the model."""
    if client.mask.dtype != torch.bool or client.mask.shape != client.vector.shape:
        problem = f"makes client.mask {_form(client.mask)}; it must be bool {list(client.vector.shape)}"
        raise _error(algorithm, "", problem)


def check_memory(memory: Mapping[str, Tensor], name: str, algorithm: Algorithm) -> None:
    """Refuse a memory with entries other than tensors."""
    for key, value in memory.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise _error(algorithm, "", f"puts {_kind(value)} into {name}[{key!r}]; use a name and a tensor")


def check_sums(sums: Tensor, client: ClientModule, algorithm: Algorithm) -> Tensor:
    """The answer of a test, if it is a tensor with one value per sum of the task."""
    if not isinstance(sums, Tensor) or sums.shape != (len(client.task.sums),):
        found = f"a tensor {list(sums.shape)}" if isinstance(sums, Tensor) else _kind(sums)
        wanted = f"a tensor with {len(client.task.sums)} values, one per name in task.sums"
        raise _error(algorithm, "test", f"returns {found}; use {wanted}")
    return sums


def check_cohort(cohort: Sequence[int], num_clients: int, round_: int, comm: Comm, algorithm: Algorithm) -> None:
    """Refuse an empty choice of clients, one out of range, or one that differs between ranks."""
    if not all(isinstance(client, Integral) for client in cohort):
        raise _error(algorithm, "select_cohort", f"chooses {list(cohort)!r:.60}; use numbers of clients")
    if not cohort or not 0 <= cohort[0] <= cohort[-1] < num_clients:
        found = f"clients {cohort[0]} to {cohort[-1]}" if cohort else "no client"
        raise _error(algorithm, "select_cohort", f"chooses {found} in round {round_}; there are 0 to {num_clients - 1}")
    comm.require_equal(hash(tuple(cohort)), f"algorithm: the choice of {_name(algorithm)}.select_cohort")


def check_replies(replies: Replies, cohort: Sequence[int], algorithm: Algorithm) -> Iterator[tuple[int, Reply]]:
    """Yield the replies of `aggregate`, and refuse anything else."""
    problem = "returns {}; use pairs of a client and a Reply, or None"
    if not isinstance(replies, Iterable) or isinstance(replies, Mapping | Tensor):
        raise _error(algorithm, "aggregate", problem.format(_kind(replies)))
    for pair in replies:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Reply):
            raise _error(algorithm, "aggregate", problem.format(f"a reply {pair!r:.60}"))
        if pair[0] not in cohort:
            raise _error(algorithm, "aggregate", f"replies to client {pair[0]}, which is not in the round")
        check_memory(pair[1].memory, "the memory of a reply", algorithm)
        yield pair


def _versions(server: Server) -> dict[str, object]:
    """The tensors of the server, and how often each was changed in place."""
    memory = {f"memory[{name!r}]": tensor for name, tensor in server.memory.items()}
    held = {"vector": server.vector, "initial": server.initial, **memory}
    return {name: (id(tensor), getattr(tensor, "_version", 0)) for name, tensor in held.items()}


def _contents(algorithm: Algorithm) -> dict[str, object]:
    """The containers and tensors that an algorithm or its class holds, as values that can be compared."""
    kinds = [vars(kind) for kind in type(algorithm).__mro__ if issubclass(kind, Algorithm)]
    named = (item for names in (*kinds, vars(algorithm)) for item in names.items())
    held = {name: value for name, value in named if not name.startswith("__")}
    tensors: dict[str, object] = {name: value._version for name, value in held.items() if isinstance(value, Tensor)}
    return tensors | {name: repr(value) for name, value in held.items() if isinstance(value, CONTAINERS)}


def _form(tensor: Tensor) -> str:
    """Type and shape, such as `float32 [115]`."""
    if not isinstance(tensor, Tensor):
        return _kind(tensor)
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _first_difference(one: Mapping[str, object], other: Mapping[str, object]) -> str | None:
    return next((name for name in sorted({**one, **other}) if one.get(name) != other.get(name)), None)


def _error(algorithm: Algorithm, step: str, problem: str) -> AlgorithmError:
    return AlgorithmError(f"algorithm: {_name(algorithm)}{'.' + step if step else ''} {problem}")


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).__name__


def _kind(value: object) -> str:
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
