"""Evaluation of all clients, each with its own and with the global model, against bare forward passes."""

from __future__ import annotations

from collections.abc import Callable

import bare
import plain_nets
import torch
from federation import RandomImages, make_loop
from measure import Bar, Part, Spread, ratios, take_turns

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.nets import CNN

GOAL = 1.1
SHAPES = {"CNN 3x32x32": (3, 32, 32), "CNN 1x28x28": (1, 28, 28)}


def passes(shape: tuple[int, int, int], clients: int, samples: int) -> dict[str, Callable[[], None]]:
    """Ours, and the bare ones in both memory layouts: two passes for each client, its own model and the global one."""
    loop = make_loop(RandomImages(shape, [20] * clients, samples), CNN, FedOBP(quantile=0.995), local_epochs=1)
    loop.round()
    x, y = loop.data.batch(torch.arange(len(loop.data.samples.y)), torch.device("cpu"))
    tests = [loop.data.test_indices(client) for client in range(clients)]

    def ours() -> None:
        loop.evaluate()

    def theirs(layout: torch.memory_format) -> Callable[[], None]:
        net = plain_nets.cnn(shape[0], shape[1]).to(memory_format=layout)
        inputs = x.contiguous(memory_format=layout)

        def run() -> None:
            for indices in tests:
                for _ in range(2):
                    bare.evaluate(net, inputs, y, indices)

        return run

    return {"ours": ours, "plain": theirs(torch.contiguous_format), "channels_last": theirs(torch.channels_last)}


def main() -> None:
    part = Part("evaluation", "Seconds of an evaluation of all clients over bare forward passes", axis="ours / bare")
    options = part.options()
    turns, clients, samples = (2, 10, 50) if options.quick else (9, 100, 150)
    for name, shape in SHAPES.items():
        found = take_turns(passes(shape, clients, samples), options.turns or turns)
        best = min(("plain", "channels_last"), key=lambda key: Spread.of(found[key]).median)
        ratio, done = ratios(found["ours"], found[best]), 2 * clients * samples
        part.rows.append(
            {
                "net": name,
                "ours / bare": ratio.text(3),
                "goal": f"{GOAL:.2f}",
                "our samples/s": f"{done / Spread.of(found['ours']).median:,.0f}",
                "bare samples/s": f"{done / Spread.of(found[best]).median:,.0f}",
                "bare layout": best,
                "clients": f"{clients} with {samples} test samples each",
            }
        )
        part.bars.append(Bar(name, ratio, GOAL))
    part.finish()


if __name__ == "__main__":
    main()
