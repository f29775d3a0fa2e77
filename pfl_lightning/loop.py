"""The federated loop: a round is a straight line, the same on one rank and on many."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.client import LocalTraining
from pfl_lightning.cohort import derive_seed, draw_cohort
from pfl_lightning.comm import Comm
from pfl_lightning.compiled import compile_net
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.errors import RunError
from pfl_lightning.history import ALL_MOMENTS, History
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.monitor import Monitor, RoundRecord
from pfl_lightning.pace import Pace
from pfl_lightning.side_by_side import SideBySide
from pfl_lightning.signals import StopSignals
from pfl_lightning.stopwatch import Stopwatch, peak_memory
from pfl_lightning.store import ClientStore, StoreConfig
from pfl_lightning.tasks.task import Task
from pfl_lightning.team import Team
from pfl_lightning.visits import Visits

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
        data.to(fabric.device, config.channels_last)
        local = LocalTraining(config.local_epochs, config.batch_size, config.test_batch_size, config.channels_last)
        self.side_by_side = SideBySide(config.clients_per_step, task, data, local, fabric, seed)
        self.client = self.side_by_side.clients[0]
        initial = self.client.vector.clone()
        self.server = Server(initial.clone(), initial, self.client.layout, data.num_clients)
        algorithm.begin(self.client, self.server)
        self.watch = Stopwatch()
        self.comm = Comm(fabric, stop=stop or StopSignals(), watch=self.watch)
        for client in self.side_by_side.clients:
            client.between_batches = self.comm.check
        self.team = Team(self.comm, self.client, config.ranks_per_client)
        for client in self.side_by_side.clients if config.compile else ():
            compile_net(client, str(config.compile))
        self.store = ClientStore(data.num_clients, self.comm, store)
        self.history = History(task, self.client.layout, data.num_clients, config.finetune_epochs > 0)
        self.visits = Visits(algorithm, self.server, self.store, self.side_by_side, self.team, self.watch)
        self.pace = Pace()
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
        started = time.perf_counter()
        self.watch.restart()
        self.server.round += 1
        participation = 1.0 if self.algorithm.invites_all(self.server.round) else self.config.participation
        cohort = draw_cohort(self.seed, self.server.round, self.data.num_clients, participation)
        sizes = self.data.train_sizes[torch.tensor(cohort)].tolist()
        costs = self.pace.estimate(cohort, sizes) if self.config.by_seconds else sizes
        shares = self.team.assign(cohort, costs, [self.store.home[client] for client in cohort])
        self.comm.open_round(self.server.round, shares)
        with self.watch.phase("move"):
            self.store.gather_for(shares)
        counts = sizes if self.algorithm.weighting == "samples" else [1] * len(cohort)
        weights = {client: count / (sum(counts) or 1.0) for client, count in zip(cohort, counts, strict=True)}
        rows = torch.zeros(len(cohort), self.history.row_width, dtype=torch.float64)
        row_of = dict(zip(cohort, rows, strict=True))
        mine = shares[self.team.leader]
        with self.watch.phase("aggregate"):
            uploads = self.team.hand_in(self.visits.make(mine, weights, row_of))
            replies = self.algorithm.aggregate(self.server, uploads, self.comm)
            for client, memory in (replies or {}).items():
                self.store.remember(client, memory)
        with self.watch.phase("metrics"):
            self.comm.merge_rows(rows)
        table = self.evaluate() if self._evaluates(self.server.round) else None
        # all that could still stop the round is behind us
        self.store.commit(cohort)
        self.pace.enter(cohort, sizes, self.history.visit_seconds(rows.numpy()))
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
                self.visits.open(client)
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

    def _tell(self, record: RoundRecord) -> None:
        if self.monitor:
            self.monitor.round(record, int(record.scalars["samples"]))

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
