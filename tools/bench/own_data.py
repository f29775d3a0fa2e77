"""What transforms and memory-mapped data cost: the local training of one client, in seconds of CPU time.

All ways train the same CNN on the same images. CPU seconds count, not the clock: other work on the machine then hardly
matters. The mapped file is in the system's cache, so this is the cost of mapping, not of a disk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from federation import one_rank
from measure import Bar, Part, ratios, take_turns

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.data import ClientArrays
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.nets import CNN
from pfl_lightning.tasks import Classification

TRANSFORMS: dict[str, list[Any]] = {
    "mapped file": [],
    "mapped file, flip and crop": ["RandomHorizontalFlip", {"RandomCrop": {"size": 32, "padding": 4}}],
    "mapped file, rotation": [{"RandomRotation": {"degrees": 15}}],
    "mapped file, colour jitter": [{"ColorJitter": {"brightness": 0.2}}],
}


def write_images(folder: Path, samples: int) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    x = rng.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "one.npz", x=x, y=rng.integers(0, 10, samples))
    return folder


def trainer(source: Path, transforms: list[Any], in_memory: bool = False) -> Callable[[], float]:
    """A function that trains the client for an epoch and returns the CPU seconds."""
    data = ClientArrays(source=str(source), root=str(source.parent / "prepared"), transforms=transforms or None)
    data.setup(0)
    if in_memory:
        data.samples = data.samples._replace(x=data.samples.x.clone())
    loop = FederatedFabricLoop(one_rank(), Classification(CNN), FedAvg(), data, LoopConfig(), 0)

    def train() -> float:
        client = loop.engine.client
        client.load_state(0, 1, None, loop.server.initial)
        begin = time.process_time()
        client.train_epochs()
        return time.process_time() - begin

    return train


def main() -> None:
    part = Part(
        "own_data", "Transforms and mapped data, over data in memory", axis="CPU seconds of local training, ratio"
    )
    options = part.options()
    with tempfile.TemporaryDirectory() as folder:
        source = write_images(Path(folder) / "clients", 256 if options.quick else 1024)
        ways = {"in memory": trainer(source, [], in_memory=True)}
        ways |= {name: trainer(source, transforms) for name, transforms in TRANSFORMS.items()}
        found = take_turns(ways, options.turns or (2 if options.quick else 7))
    for name in TRANSFORMS:
        ratio = ratios(found[name], found["in memory"])
        part.rows.append({"training data": name, "CPU seconds / in memory": ratio.text()})
        part.bars.append(Bar(name, ratio))
    part.finish()


if __name__ == "__main__":
    main()
