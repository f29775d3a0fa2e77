"""Mistakes in an algorithm that a round shows. Each one ends the run with one line.

Those of a single visit are checked in `engine.visit_checks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from numbers import Integral

from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Replies, Reply, Server
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.foundation.errors import AlgorithmError, ConfigError

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
        self._form, self._round = form_of(server.vector), server.round

    def check_server(self) -> None:
        """Called after the visits."""
        name = _first_difference(self._held, _versions(self.server))
        if name is not None:
            problem = f"changes server.{name} during a visit, which other ranks do not see; do it in aggregate"
            raise error_of(self.algorithm, "", problem)

    def check_algorithm(self) -> None:
        """Called after `aggregate`."""
        name = _first_difference(self._kept, _contents(self.algorithm))
        if name is not None:
            problem = f"changes self.{name} during a run, which ranks do not share and checkpoints do not save"
            raise error_of(self.algorithm, "", f"{problem}; use client.memory or server.memory")
        if (found := form_of(self.server.vector)) != self._form:
            problem = f"makes server.vector {found}; it must be {self._form}; use server.vector.copy_"
            raise error_of(self.algorithm, "aggregate", problem)
        if self.server.round != self._round:
            raise error_of(self.algorithm, "aggregate", "changes server.round, which counts the rounds of the run")
        check_memory(self.server.memory, "server.memory", self.algorithm)


def check_names(algorithm: Algorithm) -> None:
    """Refuse steps under their names of version 0.1, which nobody would call."""
    kind = type(algorithm).__name__
    for name, present in FORMER_NAMES.items():
        if hasattr(algorithm, name):
            raise ConfigError(f"algorithm: {kind} defines {name}, a name of version 0.1; use {present}")
    if "comm" in inspect.signature(algorithm.aggregate).parameters:
        raise ConfigError(f"algorithm: {kind}.aggregate takes comm, as in version 0.1; use uploads instead")


def check_memory(memory: Mapping[str, Tensor], name: str, algorithm: Algorithm) -> None:
    """Refuse a memory with entries other than tensors."""
    for key, value in memory.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise error_of(algorithm, "", f"puts {kind_of(value)} into {name}[{key!r}]; use a name and a tensor")


def check_cohort(cohort: Sequence[int], num_clients: int, round_: int, comm: Comm, algorithm: Algorithm) -> None:
    """Refuse an empty choice of clients, one out of range, or one that differs between ranks."""
    if not all(isinstance(client, Integral) for client in cohort):
        raise error_of(algorithm, "select_cohort", f"chooses {list(cohort)!r:.60}; use numbers of clients")
    if not cohort or not 0 <= cohort[0] <= cohort[-1] < num_clients:
        found = f"clients {cohort[0]} to {cohort[-1]}" if cohort else "no client"
        raise error_of(
            algorithm, "select_cohort", f"chooses {found} in round {round_}; there are 0 to {num_clients - 1}"
        )
    comm.require_equal(hash(tuple(cohort)), f"algorithm: the choice of {type(algorithm).__name__}.select_cohort")


def check_replies(replies: Replies, num_clients: int, algorithm: Algorithm) -> Iterator[tuple[int, Reply]]:
    """Yield the replies of `aggregate`, and refuse anything else."""
    problem = "returns {}; use pairs of a client and a Reply, or None"
    if not isinstance(replies, Iterable) or isinstance(replies, Mapping | Tensor):
        raise error_of(algorithm, "aggregate", problem.format(kind_of(replies)))
    for pair in replies:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Reply):
            raise error_of(algorithm, "aggregate", problem.format(f"a reply {pair!r:.60}"))
        if pair[0] not in range(num_clients):
            raise error_of(algorithm, "aggregate", f"replies to client {pair[0]}; there are 0 to {num_clients - 1}")
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


def form_of(tensor: Tensor) -> str:
    """Type and shape, such as `float32 [115]`."""
    if not isinstance(tensor, Tensor):
        return kind_of(tensor)
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _first_difference(one: Mapping[str, object], other: Mapping[str, object]) -> str | None:
    return next((name for name in sorted({**one, **other}) if one.get(name) != other.get(name)), None)


def error_of(algorithm: Algorithm, step: str, problem: str) -> AlgorithmError:
    """The error of a step of an algorithm."""
    return AlgorithmError(f"algorithm: {type(algorithm).__name__}{'.' + step if step else ''} {problem}")


def kind_of(value: object) -> str:
    """The type of a value for an error message: `a Tensor`, `nothing`."""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
