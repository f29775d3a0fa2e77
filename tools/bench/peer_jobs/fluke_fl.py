"""FedAvg in fluke, which trains client after client in one process; torch has two threads."""

from __future__ import annotations

from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from job import RoundClock, read_job

ROUNDS = 2


class Given:
    """Deals the clients that are given, where fluke asks for a splitter of a data set."""

    def __init__(self, clients: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.clients = clients

    def assign(self, n_clients: int, batch_size: int) -> tuple[Any, Any]:
        loaders = [FastDataLoader(x, y, num_labels=10, batch_size=batch_size, shuffle=True) for x, y in self.clients]
        return (loaders, [None] * n_clients), None


def main() -> None:
    job, clock = read_job(threads=2), RoundClock()
    env = FlukeENV()
    env.set_device("cpu")
    env.set_evaluator(ClassificationEval(eval_every=100, n_classes=10))
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimizer = DDict(name=torch.optim.SGD, lr=job.lr, momentum=job.momentum)
    settings = DDict(
        model=job.net,
        client=DDict(
            batch_size=job.batch_size,
            local_epochs=job.epochs,
            loss=torch.nn.CrossEntropyLoss,
            optimizer=optimizer,
            scheduler=DDict(name=torch.optim.lr_scheduler.StepLR, gamma=1.0, step_size=1),
        ),
        server=DDict(weighted=True),
    )
    federation = CentralizedFL(len(job.clients), Given(job.clients), settings)
    for _ in range(ROUNDS):
        federation.run(1, 1.0, finalize=False)
        clock.tick()
    clock.tell()


if __name__ == "__main__":
    main()
