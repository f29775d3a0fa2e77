"""Evaluation of all clients, each with its own and with the global model, against bare forward passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import plain_nets
from bare_process import best, four_ways
from federation import RandomImages, make_loop, work_of
from measure import Bar, Part, Spread, ratios, take_turns

from pfl_lightning.algorithms import FedAvg, FedOBP
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.nets import CNN

GOAL = 1.05
SHAPES = {"CNN 3x32x32": (3, 32, 32), "CNN 1x28x28": (1, 28, 28)}


def evaluate(loop: FederatedFabricLoop) -> None:
    loop.evaluate()


def main() -> None:
    part = Part("evaluation", "Seconds of an evaluation of all clients over bare forward passes", axis="ours / bare")
    options = part.options()
    turns, clients, sizes = (2, 10, [50]) if options.quick else (5, 20, [150, 30])
    for name, shape in SHAPES.items():
        for samples in sizes:
            data = RandomImages(shape, [20] * clients, samples)
            methods = {type(method).__name__: method for method in (FedAvg(), FedOBP(quantile=0.995))}
            loops = {key: make_loop(data, CNN, method, local_epochs=1) for key, method in methods.items()}
            for loop in loops.values():
                loop.round()  # gives each client a state
            theirs = four_ways(work_of(loops["FedOBP"], plain_nets.cnn))
            things: dict[str, Callable[[], object]] = {key: partial(evaluate, loop) for key, loop in loops.items()}
            things |= {str(way): partial(one.do, "evaluation") for way, one in theirs.items()}
            found = take_turns(things, options.turns or turns)
            for one in theirs.values():
                one.end()
            bare = best(found, [str(way) for way in theirs if way.reuse])
            wasteful = best(found, [str(way) for way in theirs if not way.reuse])
            done = 2 * clients * samples
            for method in methods:
                ratio = ratios(found[method], found[bare])
                part.rows.append(
                    {
                        "net": name,
                        "test samples of a client": samples,
                        "method": method,
                        "ours / bare": ratio.text(3),
                        "goal": f"{GOAL:.2f}",
                        "our samples/s": f"{done / Spread.of(found[method]).median:,.0f}",
                        "bare samples/s": f"{done / Spread.of(found[bare]).median:,.0f}",
                        "its layout": bare.split()[0],
                        "ours / bare that gives memory back": ratios(found[method], found[wasteful]).text(3),
                    }
                )
                part.bars.append(Bar(f"{name}, {samples} samples, {method}", ratio, GOAL))
    part.finish()


if __name__ == "__main__":
    main()
