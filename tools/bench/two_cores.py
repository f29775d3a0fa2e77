"""A round of FedOBP's CIFAR-10 setting on two cores: our two ranks against what a bare loop can make of them.

FedAvg, ten clients with 3 734 samples in all, 5 epochs, batches of 32, the papers' CNN, no tests to speak of. Most
frameworks train one client after the other in one process with two threads, in the plain layout. The bare loops reuse
freed memory as ours does, but for one, which shows what that gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import plain_nets
from bare_process import BareProcess, Work
from federation import RandomImages, make_loop, unequal_sizes, work_of
from lightning.fabric import Fabric
from measure import Bar, Part, Spread, ratios, take_turns

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.cli.launch import FabricConfig, make_fabric
from pfl_lightning.engine.cohort import assign
from pfl_lightning.nets import CNN

CLIENTS, SAMPLES, EPOCHS = 10, 3734, 5
BASE = "bare loop, two processes of one thread, channels_last, reusing memory"
WASTEFUL = "bare loop, two processes of one thread, channels_last, giving memory back"
GOALS = {"two ranks": 0.9, "two ranks, bf16-mixed": 0.5}


def parts_of(work: Work, count: int) -> list[Work]:
    """The work of `count` processes that end at about the same time."""
    costs = [sum(map(len, batches)) for batches in work.batches]
    shares = assign(range(len(costs)), costs, count, [-1] * len(costs))
    lists = ("batches", "tests", "weights")
    return [replace(work, **{name: [getattr(work, name)[c] for c in share] for name in lists}) for share in shares]


def together(processes: list[BareProcess]) -> float:
    """The seconds of the one that takes longest."""
    for process in processes:
        process.begin("training")
    return max(process.answer() for process in processes)


def ours(data: RandomImages, epochs: int, precision: Any) -> float:
    """A round's seconds on two ranks; a short one before it does not count."""

    def work(fabric: Fabric) -> float:
        make_loop(data, CNN, FedAvg(), fabric, local_epochs=1).round()
        loop = make_loop(data, CNN, FedAvg(), fabric, local_epochs=epochs)
        return float(loop.round().scalars["seconds"])

    fabric = make_fabric(FabricConfig(accelerator="cpu", devices=2, precision=precision), CLIENTS)
    seconds: float = fabric.launch(work)
    return seconds


def main() -> None:
    part = Part("two_cores", "A round on two cores, over a bare loop on two processes", axis="over two bare processes")
    options = part.options()
    samples, epochs = (160, 1) if options.quick else (SAMPLES, EPOCHS)
    data = RandomImages((3, 32, 32), unequal_sizes(CLIENTS, samples), 1)
    work = work_of(make_loop(data, CNN, FedAvg(), local_epochs=epochs), plain_nets.cnn)
    bare = {
        "bare loop, two threads, plain layout": [BareProcess(work, "plain", reuse=True, threads=2)],
        "bare loop, two threads, channels_last": [BareProcess(work, "channels_last", reuse=True, threads=2)],
        "bare loop, one thread, channels_last": [BareProcess(work, "channels_last", reuse=True)],
        WASTEFUL: [BareProcess(half, "channels_last") for half in parts_of(work, 2)],
        BASE: [BareProcess(half, "channels_last", reuse=True) for half in parts_of(work, 2)],
    }
    mine = {"two ranks": "32-true", "two ranks, bf16-mixed": "bf16-mixed"}
    things: dict[str, Callable[[], float]] = {name: partial(together, them) for name, them in bare.items()}
    things |= {name: partial(ours, data, epochs, precision) for name, precision in mine.items()}
    found = take_turns(things, options.turns or (1 if options.quick else 4), warm_up=0 if options.quick else 1)
    for name, seconds in found.items():
        ratio, goal = ratios(seconds, found[BASE]), GOALS.get(name)
        part.rows.append(
            {
                "what": name,
                "seconds a round": Spread.of(seconds).text(1),
                "over two bare processes": ratio.text(),
                "goal": goal or "",
                "samples/s": f"{epochs * int(data.train.sum()) / Spread.of(seconds).median:,.0f}",
            }
        )
        part.bars.append(Bar(name, ratio, goal))
    for process in (process for them in bare.values() for process in them):
        process.end()
    part.finish()


if __name__ == "__main__":
    main()
