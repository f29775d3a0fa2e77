"""The federated loop: a round is a straight line, the same on one rank and on many."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.client import ClientModule, LocalTraining
from pfl_lightning.cohort import derive_seed, draw_cohort
from pfl_lightning.comm import Comm
from pfl_lightning.compiled import compile_net
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.errors import RunError
from pfl_lightning.exact_mean import Upload
from pfl_lightning.history import ALL_MOMENTS, History
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.monitor import Monitor, RoundRecord
from pfl_lightning.side_by_side import SideBySide
from pfl_lightning.signals import StopSignals
from pfl_lightning.stopwatch import Stopwatch, peak_memory
from pfl_lightning.store import ClientStore, StoreConfig
from pfl_lightning.tasks.task import Task
from pfl_lightning.team import Team

__all__ = ["FederatedFabricLoop", "LoopConfig"]


class FederatedFabricLoop:
    """Trains a federation: `fit` runs the rounds, `round` is one of them, `evaluate` tests every client.

    The server is replicated: every rank holds the same one, draws the same cohort and enters the same collectives.

    Args:
        fabric: a launched Fabric.
        task: what is learned.
        algorithm: how clients cooperate.
        data: who has what; already set up.
        config: rounds, participation, local training, evaluation.
        seed: the source of all randomness.
        monitor: told of every round; given on rank 0 only.
        on_round_end: called after every round on every rank, e.g. to write a checkpoint.
        stop: says when to stop; `fit` then raises `StopRound` and leaves everything as it was after the last round.
        store: how much memory client states may take, and where the rest goes.
    """

    def __init__(
        self,
        fabric: Fabric,
        task: Task,
        algorithm: Algorithm,
        data: FederatedData,
        config: LoopConfig,
        seed: int = 0,
        monitor: Monitor | None = None,
        on_round_end: Sequence[Callable[[FederatedFabricLoop], None]] = (),
        stop: StopSignals | None = None,
        store: StoreConfig | None = None,
    ) -> None:
        if fabric.device.type == "cpu":
            torch.set_num_threads(1)  # more threads in one process are slower; other ranks use the other cores
        self.algorithm, self.data, self.config, self.seed = algorithm, data, config, seed
        self.monitor, self.on_round_end = monitor, on_round_end
        torch.manual_seed(derive_seed(seed, "initial model"))
        task.build(data.spec)
        algorithm.check(task, data)
        algorithm.adapt(task)
        fabric.to_device(task)
        data.to(fabric.device)
        local = LocalTraining(config.local_epochs, config.batch_size, config.test_batch_size)
        self.side_by_side = SideBySide(config.clients_per_step, task, data, local, fabric, seed)
        self.client = self.side_by_side.clients[0]
        initial = self.client.vector.clone()
        self.server = Server(initial.clone(), initial, self.client.layout, data.num_clients)
        algorithm.begin(self.client, self.server)
        self.comm = Comm(fabric, stop=stop or StopSignals())
        for client in self.side_by_side.clients:
            client.between_batches = self.comm.check
        self.team = Team(self.comm, self.client, config.ranks_per_client)
        for client in self.side_by_side.clients if config.compile else ():
            compile_net(client, str(config.compile))
        self.store = ClientStore(data.num_clients, self.comm, store)
        self.history = History(task, self.client.layout, data.num_clients, config.finetune_epochs > 0)
        self.watch = Stopwatch()
        if not self.comm.all_same(torch.tensor(int(self.model_sha256()[:15], 16))):
            raise RunError("the initial model differs between ranks: task.build must use torch's random state only")

    def fit(self) -> dict[str, Any]:
        """Run the rounds that are left and return the summary."""
        while self.server.round < self.config.rounds:
            record = self.round()
            self.comm.on_first(partial(self._tell, record))
            for hook in self.on_round_end:
                hook(self)
        return self.summary()

    def round(self) -> RoundRecord:
        """One federated round: cohort, assignment, visits, aggregation, metrics. It happens wholly or not at all."""
        before = self.server.copy()
        self.comm.stoppable = True
        try:
            return self._round()
        except BaseException:
            self.server.vector, self.server.memory, self.server.round = before.vector, before.memory, before.round
            self.store.rollback()
            raise
        finally:
            self.comm.stoppable = False

    def _round(self) -> RoundRecord:
        started, self.watch = time.perf_counter(), Stopwatch()
        self.comm.watch = self.watch
        self.server.round += 1
        participation = 1.0 if self.algorithm.invites_all(self.server.round) else self.config.participation
        cohort = draw_cohort(self.seed, self.server.round, self.data.num_clients, participation)
        sizes = self.data.train_sizes[torch.tensor(cohort)].tolist()
        shares = self.team.assign(cohort, sizes, [self.store.home[client] for client in cohort])
        self.comm.open_round(self.server.round, shares)
        with self.watch.phase("move"):
            self.store.gather_for(shares)
        counts = sizes if self.algorithm.weighting == "samples" else [1] * len(cohort)
        weights = {client: count / (sum(counts) or 1.0) for client, count in zip(cohort, counts, strict=True)}
        rows = torch.zeros(len(cohort), self.history.row_width, dtype=torch.float64)
        row_of = dict(zip(cohort, rows, strict=True))
        mine = shares[self.team.leader]
        with self.watch.phase("aggregate"):
            visits = (u for few in self.side_by_side.split(mine) for u in self._visit(few, weights, row_of))
            replies = self.algorithm.aggregate(self.server, self.team.hand_in(visits), self.comm)
            for client, memory in (replies or {}).items():
                self.store.remember(client, memory)
        with self.watch.phase("metrics"):
            self.comm.merge_rows(rows)
        table = self.evaluate() if self._evaluates(self.server.round) else None
        # all that could still stop the round is behind us
        self.store.commit(cohort)
        record = self.history.enter_round(self.server.round, cohort, rows.numpy())
        if table is not None:
            self.history.enter_evaluation(record, table.numpy())
        self.history.close_round(record, time.perf_counter() - started, self.watch.seconds)
        return record

    def evaluate(self) -> Tensor:
        """Test every client at each of `ALL_MOMENTS`; the sums, one row per client, the same on every rank."""
        k = len(self.client.task.sums)
        table = torch.zeros(self.data.num_clients, len(ALL_MOMENTS) * k, dtype=torch.float64)
        with self.watch.phase("evaluate"):
            for client in self._evaluation_share():
                self._open(client)
                self.algorithm.personalize(self.client, self.server)
                table[client, :k] = self.algorithm.test(self.client, self.server)
                if self.config.finetune_epochs:
                    self.algorithm.finetune(self.client, self.server, self.config.finetune_epochs)
                    table[client, k : 2 * k] = self.client.test()
                self.client.vector.copy_(self.server.vector)
                table[client, 2 * k :] = self.client.test()
            return self.comm.merge_rows(table)

    def summary(self) -> dict[str, Any]:
        """What the run has come to; identical on every rank and, but for times, for every number of ranks."""
        return {
            "algorithm": type(self.algorithm).__name__,
            "data": self.data.name,
            "seed": self.seed,
            "rounds": self.server.round,
            "world_size": self.comm.world,
            "num_clients": self.data.num_clients,
            "num_parameters": self.server.layout.num_parameters,
            "model_sha256": self.model_sha256(),
            "clients_sha256": self.store.digest(),
            **self.history.summary(),
            "phase_seconds": self.comm.gather(self.history.phases),
            "peak_memory": self.comm.gather(peak_memory()),
        }

    def model_sha256(self) -> str:
        """SHA-256 of the global vector's bytes."""
        return hashlib.sha256(self.server.vector.cpu().numpy().tobytes()).hexdigest()

    def _visit(
        self, clients: Sequence[int], weights: Mapping[int, float], row_of: Mapping[int, Tensor]
    ) -> Iterator[Upload]:
        """Train a client, or several side by side; fill their rows of facts; save their states; yield their uploads."""
        modules = self.side_by_side.clients[: len(clients)]
        received = [
            self._receive(module, client, weights[client]) for module, client in zip(modules, clients, strict=True)
        ]
        with self.watch.phase("fit"):
            self.side_by_side.fit(modules, lambda module: self.algorithm.fit(module, self.server))
        for module, facts in zip(modules, received, strict=True):
            yield self._send(module, facts, row_of[module.id])

    def _receive(self, module: ClientModule, client: int, weight: float) -> tuple[list[float], list[int]]:
        """Bring a client to where its training starts; what is known of it then: sums of its test, bytes and mask."""
        algorithm, server, phase = self.algorithm, self.server, self.watch.phase
        with module.own_random():
            with phase("download"):
                self._open(client, module)
                module.weight = weight
                algorithm.download(module, server)
                personal = [int(module.mask[span.start : span.stop].sum()) for span in module.layout.parameter_spans]
                down = algorithm.down_bytes(module, server)
            with phase("test"):
                return algorithm.test(module, server).tolist(), [down, *personal]

    def _send(self, module: ClientModule, received: tuple[list[float], list[int]], row: Tensor) -> Upload:
        """Test and save a client that was trained; what it uploads."""
        algorithm, server, phase = self.algorithm, self.server, self.watch.phase
        module.visits += 1
        with module.own_random():
            with phase("test"):
                after = algorithm.test(module, server).tolist()
            with phase("upload"):
                upload = algorithm.upload(module, server)
                facts = [module.loss_sum, module.samples_seen, algorithm.up_bytes(module, upload)]
                if self.team.leads:
                    before, known = received
                    row.copy_(torch.tensor([*before, *after, *facts, *known], dtype=torch.float64))
                    self.store.put(module.id, module.state())
        return upload

    def _tell(self, record: RoundRecord) -> None:
        if self.monitor:
            self.monitor.round(record, int(record.scalars["samples"]))

    def _open(self, client: int, module: ClientModule | None = None) -> None:
        module = module or self.client
        state = self.team.state(partial(self.store.get, client))
        module.open(client, self.server.round, state, self.server.initial)
        if not module.visits:
            self.algorithm.setup(module, self.server)

    def _evaluates(self, round_: int) -> bool:
        every = self.config.eval_every
        return every > 0 and (round_ % every == 0 or round_ == self.config.rounds)

    def _evaluation_share(self) -> Iterator[int]:
        """Clients are tested where their state lives; those without one are spread over the ranks."""
        homeless = 0
        for client, home in enumerate(self.store.home):
            if home == -1:
                home = homeless % self.comm.world
                homeless += 1
            if home == self.comm.rank:
                yield client
