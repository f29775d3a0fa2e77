"""FedAvg in Flower's simulation with two workers of one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from job import RoundClock, read_job
from torch.nn.functional import cross_entropy

ROUNDS = 2
WORKERS = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


class Client(NumPyClient):
    """A client of Flower as its guide has it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        job = read_job(threads=1)
        x, y = job.clients[self.number]
        for own, new in zip(job.net.parameters(), parameters, strict=True):
            own.data.copy_(torch.from_numpy(new))
        optimizer = torch.optim.SGD(job.net.parameters(), lr=job.lr, momentum=job.momentum)
        for _ in range(job.epochs):
            for batch in torch.randperm(len(y)).split(job.batch_size):
                optimizer.zero_grad()
                cross_entropy(job.net(x[batch]), y[batch]).backward()
                optimizer.step()
        return [p.detach().numpy() for p in job.net.parameters()], len(y), {}


class Timed(FedAvg):
    """Tells the clock of each round's end."""

    def __init__(self, clock: RoundClock, **settings: Any) -> None:
        super().__init__(**settings)
        self.clock = clock

    def aggregate_fit(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().aggregate_fit(*args, **kwargs)
        self.clock.tick()
        return answer


def make_client(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


def main() -> None:
    job, clock = read_job(threads=1), RoundClock()
    first = ndarrays_to_parameters([p.detach().numpy() for p in job.net.parameters()])

    def make_server(context: Context) -> ServerAppComponents:
        count = len(job.clients)
        strategy = Timed(
            clock, initial_parameters=first, fraction_evaluate=0.0, min_fit_clients=count, min_available_clients=count
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    run_simulation(
        ServerApp(server_fn=make_server), ClientApp(client_fn=make_client), len(job.clients), backend_config=WORKERS
    )
    clock.tell()


if __name__ == "__main__":
    main()
