"""The federated loop: a round is a straight line, the same on one rank and on many."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server, Uploads
from pfl_lightning.callback import Callback
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.engine.build import build_engine
from pfl_lightning.engine.cohort import draw_cohort, draw_evaluated
from pfl_lightning.engine.durations import DurationModel
from pfl_lightning.engine.engine import Invitation
from pfl_lightning.engine.evaluation import evaluate_clients
from pfl_lightning.engine.mistakes import RoundGuard, check_cohort, check_memory, check_names, check_replies
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.process_memory import peak_memory
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.foundation.signals import StopSignals
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.metrics.history import History
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.metrics.visit_report import VisitReport, gather_reports
from pfl_lightning.store import ClientStore, StoreConfig
from pfl_lightning.tasks.lightning_task import as_task
from pfl_lightning.tasks.task import Task

__all__ = ["FederatedFabricLoop", "LoopConfig"]


class FederatedFabricLoop:
    """Trains a federation: `fit` runs the rounds, `round` is one of them, `evaluate` tests every client.

    The server is replicated: every rank holds the same one, draws the same cohort and enters the same collectives.

    Args:
        fabric: a launched Fabric.
        task: the model and its loss: a `Task`, any LightningModule, its class, or a function that makes one.
        algorithm: how clients cooperate.
        data: who has which samples. It is set up already.
        config: rounds, participation, local training, evaluation.
        seed: the source of all randomness.
        stop: tells when to stop. `fit` then raises `StopRound`, and everything is as after the last complete round.
        store: how much memory client states may take, and where the rest goes.
    """

    def __init__(
        self,
        fabric: Fabric,
        task: Task | LightningModule | Callable[..., LightningModule],
        algorithm: Algorithm,
        data: FederatedData,
        config: LoopConfig,
        seed: int = 0,
        stop: StopSignals | None = None,
        store: StoreConfig | None = None,
    ) -> None:
        if fabric.device.type == "cpu":
            torch.set_num_threads(1)  # more threads in one process are slower. Other ranks use the other cores
        self.algorithm, self.data, self.config, self.seed = algorithm, data, config, seed
        self.task = task = as_task(task)
        if task.learns not in (None, data.kind):
            use = "Classification" if data.kind == "classes" else "Regression or Forecasting"
            name = f"task: {type(task).__name__} learns {task.learns}"
            raise ConfigError(f"{name}, but the targets of {data.name} are {data.kind}; use {use}")
        torch.manual_seed(derive_seed(seed, "initial model"))
        task.build(data.spec)
        check_names(algorithm)
        algorithm.check(task, data)
        algorithm.modify_model(task)
        fabric.to_device(task)
        data.to(fabric.device, config.channels_last)
        self.comm = Comm(fabric, stop)
        self.engine = build_engine(config, fabric, task, algorithm, data, self.comm, seed)
        initial = self.engine.client.vector.clone()
        self.server = Server(initial.clone(), initial, self.engine.client.layout, data.num_clients)
        algorithm.init_server(self.engine.client, self.server)
        check_memory(self.server.memory, "server.memory", algorithm)
        algorithm.seal()
        self.store = ClientStore(data.num_clients, self.comm, store)
        self.evaluated = draw_evaluated(seed, data.num_clients, config.eval_clients)
        self.history = History(task, self.server.layout, data, config.finetune_epochs > 0, self.evaluated)
        self.durations = DurationModel() if config.by_seconds and self.comm.world > 1 else None
        name = "the initial model, which task.build must make with torch's random state only,"
        self.comm.require_equal(self.server.fingerprint(), name)

    def fit(self, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Run the remaining rounds and return the summary."""
        for callback in callbacks:
            callback.on_fit_start(self.server.round)
        while self.server.round < self.config.rounds and not any(callback.should_stop for callback in callbacks):
            record = self.round(callbacks)
            for callback in callbacks:
                if record.is_evaluation:
                    callback.on_evaluation_end(record)
                callback.on_round_end(record)
        summary = self.summary()
        for callback in callbacks:
            callback.on_fit_end(summary)
        return summary

    def round(self, callbacks: Sequence[Callback] = ()) -> RoundRecord:
        """Run one round. It happens as a whole or not at all."""
        self.comm.stoppable = True
        try:
            return self._round(self.server.next_round(), callbacks)
        except BaseException:
            self.store.rollback()
            raise
        finally:
            self.comm.stoppable = False

    def _round(self, server: Server, callbacks: Sequence[Callback]) -> RoundRecord:
        clock = _Clock(self.comm)
        self.comm.round = server.round
        for callback in callbacks:
            callback.on_round_start(server.round)
        cohort = self._cohort(server.round)
        sizes = self.data.train_sizes[torch.tensor(cohort)].tolist()
        costs = self.durations.estimate(cohort, sizes) if self.durations else sizes
        plan = self.engine.plan(cohort, costs, [self.store.home[client] for client in cohort])
        self.store.migrate(plan.owner)
        clock.lap("move")

        weights = self._weights(cohort, sizes)
        guard = RoundGuard(self.algorithm, server)
        uploads = Uploads(self.comm, plan.owner)
        reports: dict[int, VisitReport] = {}
        for results in self.engine.run(plan, lambda c: Invitation(c, weights[c], self.store.get(c)), server):
            uploads.add([result.upload for result in results], [result.diverged for result in results])
            for result in results:
                self.store.put(result.client, result.state)
                reports[result.client] = result.report
                for callback in callbacks:
                    callback.on_visit_end(result)
            clock.lap("aggregate", *(result.phases for result in results))
            del results, result  # the next clients train without the models of these
        uploads.close()
        guard.check_server()
        replies = self.algorithm.aggregate(server, uploads)
        for client, reply in () if replies is None else check_replies(replies, server.num_clients, self.algorithm):
            self.store.reply(client, reply.memory, reply.personal)
        uploads.require_used()
        guard.check_algorithm()
        clock.lap("aggregate")
        table = gather_reports(reports, cohort, self.task, server.layout, self.comm, server.fingerprint)
        clock.lap("metrics")
        tested, evaluation = self.config.tests(server.round), None
        if self.config.evaluates(server.round):
            evaluation = self.evaluate(server).numpy()
            clock.lap("evaluate")

        # nothing can stop the round any more
        self.server = server
        self.store.commit(cohort)
        if self.durations:
            self.durations.enter(cohort, sizes, table["seconds"][:, 0].tolist())
        return self.history.record_round(server.round, cohort, table, evaluation, clock.total(), clock.phases, tested)

    def evaluate(self, server: Server | None = None) -> Tensor:
        """Test the clients in `evaluated`. Returns the sums for each tested model: [clients, moments, sums].

        After the last round, clients that never take part are also tested after one visit.
        """
        server = server or self.server
        visited = set(self.data.held_out.tolist()) if server.round == self.config.rounds else set()
        parts = (self.engine.client, self.algorithm, server, self.evaluated, self.store.home, self.store.get)
        return evaluate_clients(*parts, self.comm, self.config.finetune_epochs, visited)

    def summary(self) -> dict[str, Any]:
        """The results of the run. They are the same on every rank and, except for times, for every number of ranks."""
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
        """SHA-256 of the bytes of the global vector."""
        return hashlib.sha256(self.server.vector.cpu().numpy().tobytes()).hexdigest()

    def _cohort(self, round_: int) -> list[int]:
        held_out = set(self.data.held_out.tolist())
        eligible = [client for client in range(self.data.num_clients) if client not in held_out] if held_out else None
        count = len(eligible) if eligible else self.data.num_clients
        drawn = draw_cohort(self.seed, round_, count, self.config.participation)
        drawn = [eligible[place] for place in drawn] if eligible else drawn
        cohort = sorted(set(self.algorithm.select_cohort(round_, drawn, self.data.num_clients)) - held_out)
        if type(self.algorithm).select_cohort is not Algorithm.select_cohort:
            check_cohort(cohort, self.data.num_clients, round_, self.comm, self.algorithm)
        return cohort

    def _weights(self, cohort: Sequence[int], sizes: Sequence[int]) -> dict[int, float]:
        counts = sizes if self.algorithm.weighting == "samples" else [1] * len(cohort)
        total = sum(counts) or 1.0
        return {client: count / total for client, count in zip(cohort, counts, strict=True)}


class _Clock:
    """Seconds per phase of a round. The time that a rank waits for others is a phase of its own."""

    def __init__(self, comm: Comm) -> None:
        self.phases: dict[str, float] = {}
        self._comm, self._started = comm, time.perf_counter()
        self._mark, self._waited = self._started, comm.waited

    def lap(self, phase: str, *inside: Mapping[str, float]) -> None:
        """Count the time since the last lap for `phase`, except for waiting and the phases `inside` it."""
        now, waited = time.perf_counter(), self._comm.waited - self._waited
        parts = [(name, seconds) for phases in inside for name, seconds in phases.items()]
        parts += [("wait", waited)] if waited else []
        rest = now - self._mark - sum(seconds for _, seconds in parts)
        for name, seconds in [*parts, (phase, rest)]:
            self.phases[name] = self.phases.get(name, 0.0) + seconds
        self._mark, self._waited = now, self._comm.waited

    def total(self) -> float:
        """Seconds since the start of the round."""
        return time.perf_counter() - self._started
