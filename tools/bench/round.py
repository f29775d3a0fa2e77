"""Our round against a bare SGD loop on the same shards, in the same order, with the same model, on one thread.

The bare loop gets the samples as normalised floats and may use either memory layout; the faster one counts. `training`
is the local training alone; `whole round` is everything, against the bare loop with both tests of each participant and
the average of their models.
"""

from __future__ import annotations

from collections.abc import Callable

import bare
import plain_nets
import torch
from federation import LR, MOMENTUM, RandomImages, make_loop, start_again
from measure import Bar, Part, Spread, ratios, take_turns
from torch import Tensor, nn

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.client import split_batches
from pfl_lightning.cohort import derive_seed
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.nets import CNN, ResNet8, ResNet18

NETS = {
    "CNN 3x32x32": (CNN, plain_nets.cnn, (3, 32, 32), (700, 500, 300), 5),
    "CNN 1x28x28": (CNN, plain_nets.cnn, (1, 28, 28), (700, 500, 300), 5),
    "ResNet-8 3x32x32": (ResNet8, plain_nets.resnet8, (3, 32, 32), (300, 200), 2),
    "ResNet-18 3x32x32": (ResNet18, plain_nets.resnet18_of_torchvision, (3, 32, 32), (200, 120), 2),
}
GOALS = {"training": 1.05, "whole round": 1.10}


class Bare:
    """The same work, done by the bare loop."""

    def __init__(self, loop: FederatedFabricLoop, net: nn.Module, layout: torch.memory_format) -> None:
        self.net = net.to(memory_format=layout)
        data, everyone = loop.data, torch.arange(len(loop.data.samples.y))
        x, self.y = data.batch(everyone, torch.device("cpu"))
        self.x = x.contiguous(memory_format=layout)
        sizes = data.train_sizes
        self.weights = (sizes / sizes.sum()).tolist()
        self.batches = [self._batches(loop, client) for client in range(data.num_clients)]
        self.tests = [data.test_indices(client).clone() for client in range(data.num_clients)]
        start = loop.client.layout.views(loop.server.initial)
        for own, ours in zip(
            (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())), start.values(), strict=True
        ):
            own.data.copy_(ours)
        self.initial = [t.detach().clone() for t in (*net.parameters(), *net.buffers())]

    @staticmethod
    def _batches(loop: FederatedFabricLoop, client: int) -> list[Tensor]:
        indices, found = loop.data.train_indices(client), []
        for epoch in range(loop.config.local_epochs):
            shuffle = torch.Generator().manual_seed(derive_seed(loop.seed, "shuffle", 1, client, str(epoch)))
            found += split_batches(indices[torch.randperm(len(indices), generator=shuffle)], loop.config.batch_size)
        return found

    def training(self) -> None:
        for batches in self.batches:
            bare.load(self.net, self.initial)
            bare.train(self.net, self.x, self.y, batches, LR, MOMENTUM)

    def round(self) -> None:
        self.mean = [torch.zeros_like(t) for t in self.initial]
        for weight, batches, tests in zip(self.weights, self.batches, self.tests, strict=True):
            bare.load(self.net, self.initial)
            bare.evaluate(self.net, self.x, self.y, tests)
            bare.train(self.net, self.x, self.y, batches, LR, MOMENTUM)
            bare.evaluate(self.net, self.x, self.y, tests)
            bare.average(self.mean, self.net, weight)

    def check(self, loop: FederatedFabricLoop) -> None:
        """Both must have learned the same model, or the work was not the same."""
        ours = loop.client.layout.views(loop.server.vector)
        floats = [t for t in self.mean if t.is_floating_point()]
        worst = max(float((a - b).abs().max()) for a, b in zip(floats, ours.values(), strict=True))
        assert worst < 1e-2, f"the models differ by {worst}"


def measure(name: str, turns: int, quick: bool, part: Part) -> None:
    ours, plain, shape, sizes, epochs = NETS[name]
    if quick:
        sizes, epochs = sizes[-1:], 1
    loop = make_loop(RandomImages(shape, sizes, sizes[0] // 3), ours, FedAvg(), local_epochs=epochs)
    layouts = {"plain": torch.contiguous_format, "channels_last": torch.channels_last}
    theirs = {layout: Bare(loop, plain(shape[0], shape[1]), form) for layout, form in layouts.items()}

    def our_round() -> tuple[float, float]:
        start_again(loop)
        record = loop.round()
        return record.phases["fit"], record.scalars["seconds"]

    things: dict[str, Callable[[], object]] = {"ours": our_round}
    things |= {f"{layout} training": theirs[layout].training for layout in layouts}
    things |= {f"{layout} round": theirs[layout].round for layout in layouts}
    found = take_turns(things, turns)
    for one in theirs.values():
        one.check(loop)
    samples = epochs * sum(sizes)
    for kind, column, word in (("training", 0, "training"), ("whole round", 1, "round")):
        best = min(layouts, key=lambda layout: Spread.of(found[f"{layout} {word}"]).median)
        mine, other = [answer[column] for answer in found["ours"]], found[f"{best} {word}"]
        ratio = ratios(mine, other)
        part.rows.append(
            {
                "net": name,
                "what": kind,
                "ours / bare": ratio.text(3),
                "goal": f"{GOALS[kind]:.2f}",
                "our samples/s": f"{samples / Spread.of(mine).median:,.0f}",
                "bare samples/s": f"{samples / Spread.of(other).median:,.0f}",
                "bare layout": best,
            }
        )
        part.bars.append(Bar(f"{name}, {kind}", ratio, GOALS[kind]))


def main() -> None:
    part = Part("round", "Seconds of our round over those of a bare SGD loop", axis="ours / bare loop")
    options = part.options()
    for name in NETS:
        measure(name, options.turns or (2 if options.quick else 9), options.quick, part)
    part.finish()


if __name__ == "__main__":
    main()
