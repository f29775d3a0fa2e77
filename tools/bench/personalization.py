"""What personalization costs besides training: score, selection, merge, upload and aggregation, as a share of a round.

The round is one of clients with 500 samples and 5 epochs. Its training is that of FedAvg, measured over a few batches
and scaled to the 80 batches of a visit; the steps around it are those of a round with no local epochs, in which only
they are left (the tests are left out). The 100 M model is a wide perceptron, whose training is cheap for its size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from federation import RandomImages, make_loop
from measure import Bar, Part, Spread, draw_lines, take_turns

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import FedAvg, FedCAC, FedOBP, FedPer, FedPURIN, FedSelect, PFedSOP
from pfl_lightning.data.federated import DataSpec
from pfl_lightning.model import masks
from pfl_lightning.nets import CNN, MLP, ResNet18
from pfl_lightning.store import StoreConfig

CLIENTS, BATCHES, BATCH = 4, 80, 32
METHODS: dict[str, Callable[[], Algorithm]] = {
    "FedAvg": FedAvg,
    "FedPer": FedPer,
    "FedOBP": lambda: FedOBP(quantile=0.9999),
    "FedSelect": FedSelect,
    "FedPURIN": FedPURIN,
    "FedCAC": FedCAC,
    "PFedSOP": PFedSOP,
}
GOALS = {("FedOBP", "0.9 M"): 2.0}
MOST_TURNS = {"100 M": 2}


def wide(spec: DataSpec) -> MLP:
    """A perceptron of 100 million parameters."""
    return MLP(spec, hidden=(8600, 8600))


NETS: dict[str, Any] = {"0.9 M": CNN, "11 M": ResNet18, "100 M": wide}


def seconds_around(make: Callable[[], Algorithm], net: Any, clients: int) -> float:
    """A round's seconds of everything but training and tests, per client; the clients were all visited before, and the
    global model has moved since.

    Everything is made anew: models of the largest size do not fit into memory side by side. No state goes to disk.
    """
    data = RandomImages((3, 32, 32), [BATCH] * clients, 1)
    loop = make_loop(data, net, make(), store=StoreConfig("1TB"), local_epochs=0)
    loop.round()
    loop.server.vector.add_(torch.randn_like(loop.server.vector), alpha=0.01)
    phases = loop.round().phases
    return sum(taken for phase, taken in phases.items() if phase != "test") / clients


def seconds_of_training(net: Any, batches: int) -> float:
    """A visit's training, from a few of its batches."""
    loop = make_loop(RandomImages((3, 32, 32), [BATCH * batches], 1), net, FedAvg(), local_epochs=1)
    loop.round()
    return float(loop.round().phases["fit"]) * BATCHES / batches


def selection(exponents: list[float], turns: int) -> tuple[list[float], list[Spread]]:
    """Nanoseconds per parameter of selecting those above a quantile, for scores of several lengths."""

    def select(n: int) -> Callable[[], float]:
        scores = torch.rand(n, generator=torch.Generator().manual_seed(0)).square_()

        def one() -> float:
            begin = time.perf_counter()
            masks.above_quantile(scores, 0.9999)
            return 1e9 * (time.perf_counter() - begin) / n

        return one

    sizes = [round(10**exponent) for exponent in exponents]
    found = take_turns({str(n): select(n) for n in sizes}, turns)
    return [float(n) for n in sizes], [Spread.of(found[str(n)]) for n in sizes]


def main() -> None:
    part = Part("personalization", "Share of a round that the steps besides training take, %", axis="%")
    options = part.options()
    turns = options.turns or (1 if options.quick else 3)
    for size, net in list(NETS.items())[: 1 if options.quick else len(NETS)]:
        clients, batches = (CLIENTS, 10) if size == "0.9 M" else (2, 2)
        things: dict[str, Callable[[], float]] = {"training": partial(seconds_of_training, net, batches)}
        things |= {name: partial(seconds_around, make, net, clients) for name, make in METHODS.items()}
        found = take_turns(things, min(turns, MOST_TURNS.get(size, turns)), warm_up=0)
        for name in METHODS:
            pairs = list(zip(found[name], found["training"], strict=True))
            share, goal = Spread.of([100 * steps / (steps + fit) for steps, fit in pairs]), GOALS.get((name, size))
            part.rows.append(
                {
                    "parameters": size,
                    "method": name,
                    "share of a round, %": share.text(),
                    "goal": "" if goal is None else f"{goal:.0f}",
                    "ms per client": Spread.of([1000 * steps for steps, _ in pairs]).text(1),
                    "training, ms": Spread.of([1000 * fit for _, fit in pairs]).text(0),
                }
            )
            part.bars.append(Bar(f"{name}, {size}", share, goal))
    sizes, costs = selection([5, 6, 7] if options.quick else [5, 5.5, 6, 6.5, 7, 7.5, 8], turns)
    for n, cost in zip(sizes, costs, strict=True):
        part.second_rows.append(
            {
                "selection among": f"{n:,.0f} parameters",
                "ms": f"{n * cost.median / 1e6:.2f}",
                "nanoseconds per parameter": cost.text(),
            }
        )
    panels = {"nanoseconds per parameter": (sizes, costs)}
    part.figures["selection"] = draw_lines("Selecting the largest 0.01 % of the scores", "parameters", panels)
    part.finish()


if __name__ == "__main__":
    main()
