"""Bare loops in processes of their own: they share nothing with ours, not even how memory is taken from the system."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from unittest.mock import patch

import bare
import torch
from measure import Spread
from torch import Tensor, nn

LAYOUTS = {"plain": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass
class Work:
    """What a round of a bare loop consists of: the same samples, batches and first model as ours."""

    make_net: Callable[[int, int], nn.Module]
    x: Tensor
    y: Tensor
    initial: list[Tensor]
    """The first model's parameters and float buffers."""
    batches: list[list[Tensor]]
    tests: list[Tensor]
    weights: list[float]
    lr: float = 0.0
    momentum: float = 0.0


class BareLoop:
    """The work in one memory layout."""

    def __init__(self, work: Work, layout: str) -> None:
        self.work, form = work, LAYOUTS[layout]
        self.net = work.make_net(work.x.shape[1], work.x.shape[2]).to(memory_format=form)
        self.x = work.x.contiguous(memory_format=form)
        floats = (*self.net.parameters(), *(b for b in self.net.buffers() if b.is_floating_point()))
        for own, first in zip(floats, work.initial, strict=True):
            own.data.copy_(first)
        self.initial = [t.detach().clone() for t in (*self.net.parameters(), *self.net.buffers())]

    def training(self) -> None:
        for batches in self.work.batches:
            bare.load(self.net, self.initial)
            bare.train(self.net, self.x, self.work.y, batches, self.work.lr, self.work.momentum)

    def round(self) -> tuple[float, float]:
        """The seconds of the training in it, and of all of it."""
        work, begin, training = self.work, time.perf_counter(), 0.0
        mean = [torch.zeros_like(t) for t in self.initial]
        for weight, batches, tests in zip(work.weights, work.batches, work.tests, strict=True):
            bare.load(self.net, self.initial)
            bare.evaluate(self.net, self.x, work.y, tests)
            training -= time.perf_counter()
            bare.train(self.net, self.x, work.y, batches, work.lr, work.momentum)
            training += time.perf_counter()
            bare.evaluate(self.net, self.x, work.y, tests)
            bare.average(mean, self.net, weight)
        return training, time.perf_counter() - begin

    def evaluation(self) -> None:
        """Two tests of each client, as with its own and with the global model."""
        for indices in self.work.tests:
            for _ in range(2):
                bare.evaluate(self.net, self.x, self.work.y, indices)

    def first_batch(self) -> list[Tensor]:
        """The model after the first batch, so that others can compare theirs."""
        work = self.work
        bare.load(self.net, self.initial)
        bare.train(self.net, self.x, work.y, work.batches[0][:1], work.lr, work.momentum)
        return [t.detach().clone() for t in (*self.net.parameters(), *self.net.buffers()) if t.is_floating_point()]


class BareProcess:
    """A process that does the work when told.

    Args:
        work: what there is to do.
        layout: how images and weights lie in memory.
        reuse: take memory from the system as our ranks do; by default as Python does.
        threads: that torch may use.
        variables: of its environment, besides ours.
    """

    def __init__(
        self,
        work: Work,
        layout: str,
        reuse: bool = False,
        threads: int = 1,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, far_end = context.Pipe()
        self.process = context.Process(target=serve, args=(far_end, work, layout, reuse, threads), daemon=True)
        with patch.dict(os.environ, variables or {}):
            self.process.start()

    def do(self, what: str) -> Any:
        """What the work returns, or the seconds that it took."""
        self.begin(what)
        return self.answer()

    def begin(self, what: str) -> None:
        """Let it work, while this process goes on."""
        self.line.send(what)

    def answer(self) -> Any:
        """Wait for what `do` returns."""
        return self.line.recv()

    def end(self) -> None:
        self.line.send("end")
        self.process.join()


def serve(line: Connection, work: Work, layout: str, reuse: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    if reuse:
        from pfl_lightning.foundation.allocator import reuse_memory

        reuse_memory()
    loop = BareLoop(work, layout)
    while (what := line.recv()) != "end":
        begin = time.perf_counter()
        answer = getattr(loop, what)()
        line.send(time.perf_counter() - begin if answer is None else answer)


class Way(NamedTuple):
    """How a bare loop has its memory."""

    layout: str
    reuse: bool

    def __str__(self) -> str:
        return f"{self.layout} {'reusing' if self.reuse else 'usual'}"


def four_ways(work: Work) -> dict[Way, BareProcess]:
    """Both layouts, each in a process as anyone has it and in one that reuses memory as ours do."""
    ways = [Way(layout, reuse) for reuse in (False, True) for layout in LAYOUTS]
    return {way: BareProcess(work, *way) for way in ways}


def best(found: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """The one of these with the lowest median."""
    return min(names, key=lambda name: Spread.of(found[name]).median)
