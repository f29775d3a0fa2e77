"""Our round against a bare SGD loop on the same shards, in the same order, with the same model, on one thread.

The bare loop gets the samples as normalised floats, runs in a process of its own that reuses memory as ours does, and
may use either memory layout; the faster one counts. `training` is the local training alone; `whole round` is
everything, against the bare loop with both tests of each participant and the average of their models. Beside it: what
bfloat16 would gain, and what is left if there were nothing but the multiply-adds, at the speed of a large matrix
product.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import plain_nets
import torch
from bare_process import BareProcess, best, four_ways
from federation import RandomImages, make_loop, one_rank, start_again, work_of
from measure import Bar, Part, Spread, ratios, take_turns
from torch.utils.flop_counter import FlopCounterMode

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.nets import CNN, ResNet8, ResNet18

# our net, the plain one, image, samples of each client, epochs, loop.channels_last
NETS = {
    "CNN 3x32x32": (CNN, plain_nets.cnn, (3, 32, 32), (400, 300, 200), 3, True),
    "CNN 1x28x28": (CNN, plain_nets.cnn, (1, 28, 28), (400, 300, 200), 3, True),
    "ResNet-8 3x32x32": (ResNet8, plain_nets.resnet8, (3, 32, 32), (192, 128), 2, True),
    "ResNet-18 3x32x32": (ResNet18, plain_nets.resnet18_of_torchvision, (3, 32, 32), (320,), 2, False),
}
GOALS = {"training": 1.05, "whole round": 1.10}


def check(theirs: BareProcess, loop: FederatedFabricLoop) -> None:
    """Both must make the same of the first batch, or the work is not the same. Later on rounding may be amplified."""
    client, first = loop.engine.client, loop.server.initial
    client.load_state(0, 1, None, first)
    client.train_epochs(steps=1)
    ours, start = (client.layout.views(vector) for vector in (client.vector, first))
    apart = sum(float((a - b).square().sum()) for a, b in zip(theirs.do("first_batch"), ours.values(), strict=True))
    moved = sum(float((ours[name] - start[name]).square().sum()) for name in ours)
    assert apart < 0.01**2 * moved, f"the models differ by {(apart / moved) ** 0.5:.3f} of what they have moved"


def multiply_adds(loop: FederatedFabricLoop) -> float:
    """Those of training on one sample, from a batch."""
    client = loop.engine.client
    client.load_state(0, 1, None, loop.server.initial)
    client.start_training()
    batch = next(client.batches("0"))
    with FlopCounterMode(display=False) as counter:
        client.compute_gradient(batch)
    return counter.get_total_flops() / 2 / len(batch[1])


def matmul_speed(n: int = 1024) -> float:
    """Multiply-adds per second of a large matrix product: what the machine can do."""
    a, b = torch.rand(n, n), torch.rand(n, n)
    begin = time.perf_counter()
    for _ in range(8):
        torch.mm(a, b)
    return float(8 * n**3 / (time.perf_counter() - begin))


def one_round(loop: FederatedFabricLoop) -> tuple[float, float]:
    """The seconds of the training in it, and of all of it."""
    start_again(loop)
    record = loop.round()
    return record.phases["fit"], record.scalars["seconds"]


def measure(name: str, turns: int, quick: bool, part: Part) -> None:
    ours, plain, shape, sizes, epochs, channels_last = NETS[name]
    if quick:
        sizes, epochs = sizes[-1:], 1
    data = RandomImages(shape, sizes, sizes[0] // 3)
    loops = {
        precision: make_loop(
            data, ours, FedAvg(), one_rank(precision), local_epochs=epochs, channels_last=channels_last
        )
        for precision in ("32-true", "bf16-mixed")
    }
    loop = loops["32-true"]
    theirs = four_ways(work_of(loop, plain))
    for one in theirs.values():
        check(one, loop)
    things: dict[str, Callable[[], Any]] = {precision: partial(one_round, loops[precision]) for precision in loops}
    things |= {str(way): partial(one.do, "round") for way, one in theirs.items()}
    things |= {"matmul": lambda: (matmul_speed(), 0.0)}
    found = take_turns(things, turns)
    for one in theirs.values():
        one.end()
    samples = epochs * sum(sizes)
    for column, kind in enumerate(GOALS):
        seconds = {key: [answer[column] for answer in answers] for key, answers in found.items()}
        bare = best(seconds, [str(way) for way in theirs if way.reuse])
        wasteful = best(seconds, [str(way) for way in theirs if not way.reuse])
        ratio, half = (ratios(seconds[precision], seconds[bare]) for precision in loops)
        row = {
            "net": name,
            "what": kind,
            "ours / bare": ratio.text(3),
            "goal": f"{GOALS[kind]:.2f}",
            "our samples/s": f"{samples / Spread.of(seconds['32-true']).median:,.0f}",
            "bare samples/s": f"{samples / Spread.of(seconds[bare]).median:,.0f}",
            "our layout, its": f"{'channels_last' if channels_last else 'plain'}, {bare.split()[0]}",
            "ours / bare that gives memory back": ratios(seconds["32-true"], seconds[wasteful]).text(3),
            "ours in bf16-mixed / bare": half.text(3),
            "multiply-adds alone / bare": "",
        }
        if kind == "training":
            alone = [multiply_adds(loop) * samples / speed for speed, _ in found["matmul"]]
            row["multiply-adds alone / bare"] = ratios(alone, seconds[bare]).text(2)
        part.rows.append(row)
        part.bars.append(Bar(f"{name}, {kind}", ratio, GOALS[kind]))


def main() -> None:
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    part = Part("round", "Seconds of our round over those of a bare SGD loop", axis="ours / bare loop", more=more)
    options = part.options()
    for name in options.nets:
        measure(name, options.turns or (2 if options.quick else 5), options.quick, part)
    part.finish()


if __name__ == "__main__":
    main()
