"""Why is FLOCO+ below Ditto? FLOCO+ is turned into Ditto in steps, and each step is measured.

python tools/check/floco_plus.py [--rounds 40] [--seeds 0 1 2] [--participation 0.1] [--rows Ditto FLOCO+]

An MLP on Fashion10k, Dir(0.3), learning rate 0.02. Four things set FLOCO+'s head apart from Ditto's. Every batch trains
another point α of the simplex. A step moves W(α) by Σα² of the length that Ditto's head moves. The head in the middle
starts about √M times smaller. And clients get regions. A row takes away one or more: "middle" trains at the center
alone, "scaled" divides the endpoints' gradient by Σα², "same start" gives all endpoints the net's own head, and "no
regions" never gives any. All four together are Ditto.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

from pfl_lightning import Classification, fit
from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms.ditto import Ditto
from pfl_lightning.algorithms.floco import Floco
from pfl_lightning.algorithms.flocoplus import FlocoPlus
from pfl_lightning.algorithms.parts.simplex import SimplexHead
from pfl_lightning.data import Dirichlet, Fashion10k
from pfl_lightning.nets.mlp import MLP
from pfl_lightning.tasks.task import Task


class ChangedHead(SimplexHead):
    """A simplex that can be trained in its center alone, and in steps of full length."""

    def __init__(self, head: nn.Linear, endpoints: int, middle: bool, scaled: bool, same_start: bool) -> None:
        super().__init__(head, endpoints)
        self.middle, self.scaled = middle, scaled
        if same_start:
            with torch.no_grad():
                self.endpoints.copy_(head.weight)

    @override
    def forward(self, z: Tensor) -> Tensor:
        alpha = self.draw() if self.training and not self.middle else self.center
        weight = torch.tensordot(alpha, self.endpoints, 1)
        if self.scaled:
            weight = weight.detach() + (weight - weight.detach()) / alpha.square().sum()
        return linear(z, weight, self.bias)


@dataclass
class Changed(FlocoPlus):
    """FLOCO+ with such a head."""

    middle: bool = False
    scaled: bool = False
    same_start: bool = False

    @override
    def modify_model(self, task: Task) -> None:
        head = cast(nn.Linear, task.head)
        task.replace_head(ChangedHead(head, self.endpoints, self.middle, self.scaled, self.same_start))


NEVER = 1_000_000
ROWS: dict[str, Callable[[], Algorithm]] = {
    "Ditto": Ditto,
    "Floco": Floco,
    "FLOCO+": FlocoPlus,
    "scaled": partial(Changed, scaled=True),
    "middle": partial(Changed, middle=True),
    "same start": partial(Changed, same_start=True),
    "middle, scaled": partial(Changed, middle=True, scaled=True),
    "scaled, same start": partial(Changed, scaled=True, same_start=True),
    "middle, scaled, same start": partial(Changed, middle=True, scaled=True, same_start=True),
    "no regions": partial(FlocoPlus, tau=NEVER),
    "scaled, same start, no regions": partial(Changed, scaled=True, same_start=True, tau=NEVER),
    "FLOCO+, lam 10": partial(FlocoPlus, lam=10.0),
    "FLOCO+, 20 epochs": partial(FlocoPlus, personal_epochs=20),
    "all four": partial(Changed, middle=True, scaled=True, same_start=True, tau=NEVER),
}
COLUMNS = ["all_acc_before", "all_acc_after", "all_global_acc"]
VISITS = ["acc_before", "acc_after"]
"""Of the clients of a round, so that no model is old. Mean over the last ten rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    args = parser.parse_args()
    print("row | seed | " + " | ".join(COLUMNS + VISITS))
    for seed in args.seeds:
        for name in args.rows:
            metrics: dict[str, Any] = fit(
                ROWS[name](),
                Classification(net=MLP, optimizer=partial(torch.optim.SGD, lr=0.02)),
                Fashion10k(num_clients=100, partition=Dirichlet(alpha=0.3), seed=seed),
                args.rounds,
                seed=seed,
                progress=False,
                participation=args.participation,
                local_epochs=5,
                batch_size=32,
                eval_every=args.rounds,
            ).metrics
            last = [float(metrics[column][-1]) for column in COLUMNS]
            last += [sum(map(float, metrics[column][-10:])) / 10 for column in VISITS]
            print(" | ".join([name, str(seed), *(f"{100 * value:.1f}" for value in last)]), flush=True)


if __name__ == "__main__":
    main()
