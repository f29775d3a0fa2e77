"""The history of a run: a record of each round, totals, and the best and latest values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np

from pfl_lightning.data.federated import FederatedData
from pfl_lightning.metrics.keys import AVERAGES, MetricKey, Moment, Scope, all_keys
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.metrics.summaries import Best, Values, by_column, summarize
from pfl_lightning.metrics.validation_choice import ValidationChoice
from pfl_lightning.model.layout import Layout
from pfl_lightning.tasks.task import Task

VISITED: tuple[Moment, ...] = ("before", "after")
"""The models of a participant, tested at its visit."""
EVALUATED: tuple[Moment, ...] = ("before", "finetuned", "global", "validation", "after")
"""The models of a client that an evaluation tests. `after` is the first visit of a client that never takes part."""
HELD_OUT: tuple[Moment, ...] = ("before", "after", "finetuned")
"""The models of a held-out client that are recorded."""


CLIENT_TOTALS = ("visits", "samples", "up_bytes", "down_bytes")
"""Totals kept for each client."""


class History:
    """Turns sums into the columns of metrics.csv.

    `before` and `after` are a participant's test before and after its local training in this round. In an evaluation
    (`all_…`) every client is tested. `all_…_before` tests the model it would start from now. `all_…_after` is the
    result of its own latest local training, whenever that was (clients never drawn do not count). `all_…_finetuned`
    tests a throw-away copy that was trained first, and `all_global_…` the plain global model. `all_…_validation` tests
    the model of `before` on validation samples. `held_out_…` are clients that never take part in training. After the
    last round, `held_out_…_after` tests what one visit of the method would make of them.
    """

    def __init__(
        self, task: Task, layout: Layout, data: FederatedData, finetuned: bool, evaluated: Sequence[int] | None = None
    ) -> None:
        self.task, self.layout, self.finetuned = task, layout, finetuned
        self.num_clients = num_clients = data.num_clients
        self.held_out = np.zeros(num_clients, dtype=bool)
        self.held_out[data.held_out.numpy()] = True
        self.testable = data.test_sizes.numpy() > 0
        self.validated = data.validation_sizes.numpy() > 0
        self.evaluated = np.arange(num_clients) if evaluated is None else np.array(evaluated)
        """The clients that evaluations test, ascending."""
        self._in_sample = np.isin(np.arange(num_clients), self.evaluated)
        metric, better = next(iter(task.better.items()))
        self.choice = ValidationChoice(metric, better, num_clients)
        self.best = Best(task.better, num_clients)
        self._spans = layout.parameter_spans
        self._keys = all_keys(task.better)
        self._names = {key: column for column, key in self._keys.items()}
        self.latest_after = np.full((num_clients, len(task.sums)), np.nan)
        self.client_totals = {name: np.zeros(num_clients, dtype=np.int64) for name in CLIENT_TOTALS}
        self.samples = self.up_bytes = self.down_bytes = 0
        self.seconds = 0.0
        self.personal_count = 0.0
        self.phases: dict[str, float] = {}
        """Seconds per phase on this rank, since the run was started or resumed."""

    def columns(self) -> list[str]:
        """The columns of metrics.csv, in their order."""
        return list(self._columns)

    @cached_property
    def _columns(self) -> list[str]:
        names = list(self.task.better)
        keys = [MetricKey(n, m, "participants", a) for a in AVERAGES for n in names for m in VISITED]
        evaluated = [MetricKey(n, m, "all", a) for n in names for m in self._tested() for a in AVERAGES]
        global_keys = [MetricKey(n, "global", "all", a) for n in names for a in AVERAGES]
        facts = ["personal_share", "personal_count", "up_bytes", "down_bytes"]
        held_out = [key._replace(scope="held_out") for key in evaluated if key.moment in HELD_OUT]
        columns = [
            [self._names[key] for key in group if key.average != "pooled" or key.metric not in self.task.unpooled]
            for group in (keys, evaluated, global_keys, held_out if self.held_out.any() else [])
        ]
        facts += ["all_clients"] if self._is_sample else []
        trained = ["train_loss", *self.task.trained.entries]
        return ["seconds", "samples", *trained, *columns[0], *facts, *columns[1], *columns[2], *columns[3]]

    @property
    def sample(self) -> str:
        """Which clients evaluations test, for people. Empty: all of them."""
        text = f"{len(self.evaluated):,} of {self.num_clients:,} clients, drawn once from the seed"
        return text if self._is_sample else ""

    @property
    def _is_sample(self) -> bool:
        """Whether evaluations test only some of the clients."""
        return len(self.evaluated) < self.num_clients

    def record_round(
        self,
        round_: int,
        cohort: Sequence[int],
        reports: np.ndarray,
        evaluation: np.ndarray | None,
        seconds: float,
        phases: dict[str, float],
        tested: bool = True,
    ) -> RoundRecord:
        """Enter a complete round.

        Args:
            round_: its number.
            cohort: its participants.
            reports: their reports, as `gather_reports` returns them.
            evaluation: the sums of the evaluated clients at `EVALUATED`, [clients, moments, sums], if there was one.
            seconds: the duration of the round.
            phases: this rank's seconds per phase.
            tested: whether the participants were tested.
        """
        record = RoundRecord(round_, self._totals(reports), cohort=list(cohort))
        metrics: dict[MetricKey, float] = {}
        for moment in VISITED if tested else ():
            values, columns = summarize(self.task, reports[moment], self.testable[np.array(cohort)], moment)
            metrics |= columns
            record.per_client |= {f"{name}_{moment}": v for name, v in values.items()}
            self.best.enter_clients("participants", moment, values, cohort)
        if tested:
            self.latest_after[np.array(cohort)] = reports["after"]
        for name, totals in self.client_totals.items():
            totals[np.array(cohort)] += 1 if name == "visits" else reports[name][:, 0].astype(np.int64)
        if evaluation is not None:
            metrics |= self._evaluation(record, evaluation)
        self.best.enter_columns(metrics)
        self.seconds += seconds
        scalars = record.scalars | {self._names[key]: value for key, value in metrics.items()} | {"seconds": seconds}
        record.scalars = {name: scalars[name] for name in self._columns if name in scalars}
        record.phases = phases
        for phase, taken in phases.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + taken
        personal = reports["personal"].mean(axis=0)
        record.layer_share = {
            span.name: float(count / (span.stop - span.start))
            for span, count in zip(self._spans, personal, strict=True)
        }
        return record

    def _totals(self, reports: np.ndarray) -> dict[str, float]:
        names = ("loss_sum", "samples", "up_bytes", "down_bytes")
        loss_sum, *counts = (float(reports[name].sum(axis=0)[0]) for name in names)
        samples, up, down = map(int, counts)
        self.personal_count = float(reports["personal"].mean(axis=0).sum())
        self.samples, self.up_bytes, self.down_bytes = (
            self.samples + samples,
            self.up_bytes + up,
            self.down_bytes + down,
        )
        return {
            "samples": samples,
            "train_loss": loss_sum / samples if samples else math.nan,
            **self.task.trained.values(reports["logged"].sum(axis=0)),
            "personal_share": self.personal_count / self.layout.num_parameters,
            "personal_count": self.personal_count,
            "up_bytes": up,
            "down_bytes": down,
        }

    @property
    def _choosers(self) -> np.ndarray:
        """The clients that an evaluation tests on both kinds of samples."""
        return self.validated & self.testable & self._in_sample & ~self.held_out

    def _tested(self) -> tuple[Moment, ...]:
        finetuned: tuple[Moment, ...] = ("finetuned",) if self.finetuned else ()
        validation: tuple[Moment, ...] = ("validation",) if self.validated.any() else ()
        return (*VISITED, *finetuned, *validation)

    def _evaluation(self, record: RoundRecord, sums: np.ndarray) -> dict[MetricKey, float]:
        if self._is_sample:
            record.scalars["all_clients"] = len(self.evaluated)
            rows, sums = sums, np.full((self.num_clients, *sums.shape[1:]), np.nan)
            sums[self.evaluated] = rows
        tables: dict[Moment, np.ndarray] = {moment: sums[:, i] for i, moment in enumerate(EVALUATED)}
        of_held_out, tables["after"] = dict(tables), self.latest_after
        trained = ~np.isnan(self.latest_after).all(axis=1)
        columns: dict[MetricKey, float] = {}
        of_clients: dict[str, Values] = {}
        for moment in (*self._tested(), "global"):
            has_samples = self.validated if moment == "validation" else self.testable
            tested = has_samples & self._in_sample & ~self.held_out & (trained if moment == "after" else True)
            values, averages = summarize(self.task, tables[moment], tested, moment, "all")
            columns |= averages
            of_clients[moment] = values
            if moment != "global":
                record.per_client |= {f"all_{name}_{moment}": v for name, v in values.items()}
            if moment in ("before", "finetuned"):
                self.best.enter_clients("all", moment, values, tested=tested)
            if moment in HELD_OUT and self.held_out.any():
                tested = self.testable & self._in_sample & self.held_out & (of_held_out[moment] != 0).any(axis=1)
                values, averages = summarize(self.task, of_held_out[moment], tested, moment, "held_out")
                columns |= averages
                record.per_client |= {f"held_out_{name}_{moment}": v for name, v in values.items()}
        if "validation" in of_clients:
            self.choice.enter(record.round, columns, self._names, of_clients)
        return columns

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that a checkpoint needs, one row or value per client."""
        totals = {f"totals/{name}": values for name, values in self.client_totals.items()}
        best = {f"best/{scope}/{moment}/{name}": v for (scope, name, moment), v in self.best.clients.items()}
        choice = {"choice/score": self.choice.client_score, "choice/value": self.choice.client_value}
        return {"latest_after": self.latest_after, **totals, **best, **choice}

    def numbers(self) -> dict[str, Any]:
        """The other values that a checkpoint needs. They survive JSON unchanged."""
        names = ("up_bytes", "down_bytes", "samples", "seconds", "personal_count")
        score = self.choice.score if self.choice.round else None
        return {name: getattr(self, name) for name in names} | {
            "last": by_column(self.best.last),
            "best": by_column(self.best.best),
            "choice": {"round": self.choice.round, "score": score, "columns": self.choice.columns},
        }

    def restore(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> None:
        """Continue from the values of `arrays` and `numbers`."""
        self.latest_after = arrays["latest_after"]
        self.client_totals = {name: arrays[f"totals/{name}"] for name in CLIENT_TOTALS}
        self.best = Best(self.task.better, self.num_clients)
        for key, values in arrays.items():
            if key.startswith("best/"):
                _, scope, moment, name = key.split("/", 3)
                self.best.clients[cast(Scope, scope), name, cast(Moment, moment)] = values
        self.best.last = {self._keys[column]: value for column, value in numbers["last"].items()}
        self.best.best = {self._keys[column]: value for column, value in numbers["best"].items()}
        choice = numbers["choice"]
        self.choice.round, self.choice.columns = choice["round"], choice["columns"]
        self.choice.score = -math.inf if choice["score"] is None else choice["score"]
        self.choice.client_score, self.choice.client_value = arrays["choice/score"], arrays["choice/value"]
        for name in ("up_bytes", "down_bytes", "samples", "seconds", "personal_count"):
            setattr(self, name, numbers[name])

    def summary(self) -> dict[str, Any]:
        """Totals and the last, best and best-per-client values, for summary.json."""
        return {
            "personal_count": self.personal_count,
            "samples_per_second": self.samples / self.seconds if self.seconds else 0.0,
            "seconds": self.seconds,
            "up_bytes": self.up_bytes,
            "down_bytes": self.down_bytes,
            **({"evaluated_clients": len(self.evaluated)} if self._is_sample else {}),
            **self.best.summary(),
            **({"best_by_validation": self.choice.summary(self._choosers)} if self.validated.any() else {}),
        }
