"""Local training on one device against a bare loop: `python tools/gpu_speed.py --accelerator cuda`.

The last line is JSON: our seconds over those of the bare loop (turn by turn, median), samples per second, waits of the
host per training step, and the most memory of the device. tools/gpu_check.py runs it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.optim import SGD

sys.path.insert(0, str(Path(__file__).with_name("bench")))
import bare
import plain_nets

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.data.sets import Fashion10k
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.local_training import split_batches
from pfl_lightning.nets import CNN
from pfl_lightning.tasks import Classification

LR, MOMENTUM, BATCH = 0.01, 0.7, 32


def make_client(accelerator: str, clients: int) -> ClientModule:
    """A live model that is client 0 of Fashion10k, on the device."""
    data = Fashion10k(clients)
    data.setup(0)
    task = Classification(CNN, lambda p: SGD(p, lr=LR, momentum=MOMENTUM))
    fabric = Fabric(accelerator=accelerator, devices=1)
    loop = FederatedFabricLoop(fabric, task, FedAvg(), data, LoopConfig(rounds=1, batch_size=BATCH), 0)
    client = loop.engine.client
    client.load_state(0, 1, None, loop.server.initial)
    return client


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Seconds until the device has done the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def count_waits(work: Callable[[], None], device: torch.device) -> int:
    """How often the host waits for the GPU. torch warns of each wait."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            work()
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in found)


def measure(accelerator: str, clients: int = 20, epochs: int = 5, turns: int = 9) -> dict[str, Any]:
    """What the last line says."""
    client = make_client(accelerator, clients)
    device, count = client.vector.device, client.num_samples
    x, y = client.data.batch(client.train_indices, device)
    net = plain_nets.cnn(x.shape[1], x.shape[2]).to(device, memory_format=torch.channels_last)
    batches = [b.to(device) for _ in range(epochs) for b in split_batches(torch.randperm(count), BATCH)]

    def ours() -> None:
        client.train_epochs(epochs)

    def theirs() -> None:
        bare.train(net, x, y, batches, LR, MOMENTUM)

    pairs = [(seconds(ours, device), seconds(theirs, device)) for _ in range(1 + turns)][1:]
    more = count_waits(lambda: client.train_epochs(2 * epochs), device) - count_waits(ours, device)
    mine, bares = (statistics.median(each) for each in zip(*pairs, strict=True))
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {
        "over_bare": statistics.median(own / other for own, other in pairs),
        "samples_per_second": epochs * count / mine,
        "bare_samples_per_second": epochs * count / bares,
        "waits_per_step": more / len(batches),
        "device_memory": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Local training on one device against a bare loop.")
    parser.add_argument("--accelerator", default="cuda", help="cuda or cpu")
    print(json.dumps(measure(parser.parse_args().accelerator)))


if __name__ == "__main__":
    main()
