"""FedAvg in pfl-research, in one of the processes that `PFL_WORKER_ADDRESSES` lists."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from job import RoundClock, read_job
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    """The net with the methods that pfl-research asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, **_: Any) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """Tells the clock of each round's end."""

    def __init__(self, clock: RoundClock) -> None:
        self.clock = clock

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    job = read_job(threads=1)
    net, clock, count = Net(job.net), RoundClock(), len(job.clients)
    data = FederatedDataset(
        lambda client: Dataset(raw_data=list(job.clients[client])),
        get_user_sampler("minimize_reuse", list(range(count))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=2, evaluation_frequency=100, train_cohort_size=count, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            net, partial(torch.optim.SGD, momentum=job.momentum), torch.optim.SGD(net.parameters(), lr=1.0)
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=job.epochs, local_learning_rate=job.lr, local_batch_size=job.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1024),
        callbacks=[Clock(clock)],
    )
    clock.tell()


if __name__ == "__main__":
    main()
