"""The model of a client outside the run, by the run's own method."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.engine.first_visit import train_first_visit
from pfl_lightning.engine.visit import load_client
from pfl_lightning.export.card import Card
from pfl_lightning.export.model_files import write_model
from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.client import ClientModule

MOST_CHECKED = 1024


class FirstVisit(NamedTuple):
    """Sums of the client's test."""

    without: Tensor
    """The plain global model."""
    before: Tensor
    """The model that the method gives the client without training."""
    after: Tensor | None
    """The model after the local training of one visit. None without training."""


def first_visit(
    live: ClientModule, client: int, algorithm: Algorithm, server: Server, training: bool = True
) -> FirstVisit:
    """Give a client without a state its model, as the method does at a first visit. Nothing is sent to the server.

    Args:
        live: the live model. It holds the client's model afterwards.
        client: its number in `live.data`.
        algorithm: how clients cooperate.
        server: the server as it is now. The visit belongs to the next round and works on a copy.
        training: whether the client trains.
    """
    load_client(live, client, None, algorithm, server)
    live.vector.copy_(server.vector)
    without = live.test()
    load_client(live, client, None, algorithm, server)
    algorithm.personalize(live, server)
    before = algorithm.test(live, server)
    if not training:
        return FirstVisit(without, before, None)
    return FirstVisit(without, before, train_first_visit(live, client, algorithm, server))


def personalize(
    run: SavedRun, data: FederatedData, origin: Path, folder: Path, training: bool = True, onnx: bool = False
) -> tuple[list[Path], dict[str, float]]:
    """Write the model of the last client of `data`, whom the run does not know.

    Args:
        run: the run. It is not changed.
        data: from `read_new_client`.
        origin: the file or folder of the samples, for the name of the model.
        folder: of the files.
        training: whether the client trains for one visit.
        onnx: whether to write an ONNX file, too.

    Returns:
        The files, and the test results.
    """
    client = data.num_clients - 1
    if not int(data.train_sizes[client]):
        raise ConfigError(f"data: {origin} has no training samples")
    run.live.data = data
    visit = first_visit(run.live, client, run.loop.algorithm, run.loop.server, training)
    results = {f"global_{name}": value for name, value in run.values(visit.without).items()}
    results |= {f"{name}_before": value for name, value in run.values(visit.before).items()}
    if visit.after is not None:
        results |= {f"{name}_after": value for name, value in run.values(visit.after).items()}
    about: Card = {
        "model": "personal model of a new client" + (", after one visit" if training else ", without local training"),
        "client": None,
        "name": origin.name,
        "visits": int(training),
        "train_samples": int(data.train_sizes[client]),
        "test_samples": int(data.test_sizes[client]),
        "label_counts": data.label_counts()[client].tolist() if data.kind == "classes" else None,
        "results": results,
    }
    samples = data.samples.x[:MOST_CHECKED].clone() if onnx else None
    return write_model(run, run.live_predictor(), about, samples, folder, origin.stem), results
