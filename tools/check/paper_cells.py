"""Train cells of the papers' experiment files for one round, on random images in place of the papers' data.

python tools/check/paper_cells.py configs/papers/fedselect/table1.yaml [--rows FedSelect Ditto] [--columns CIFAR-10]

It shows that a cell runs: its data, net, method and report fit together. A client has a few images of the right size,
two clients take part, and Dirichlet's α is 1. Everything else is the cell's. A line per cell has the value that the
table would show; accuracies mean nothing here. Cells of images only.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml

from pfl_lightning.cli.compare_resolver import ParserResolver
from pfl_lightning.cli.extends import config_files
from pfl_lightning.cli.parser import build_parser, instantiate, parse
from pfl_lightning.compare.experiment import Column, Experiment, Method
from pfl_lightning.compare.experiment_file import experiment_from
from pfl_lightning.compare.file_layers import layered, with_variant
from pfl_lightning.compare.metric import metric_from
from pfl_lightning.compare.resolving import resolved
from pfl_lightning.data import ImageData, Samples
from pfl_lightning.notebook.fit import fit

IMAGES = 12
"""Images of a client, about."""
OWN = ("rounds", "participation", "eval_every", "eval_clients")
"""Settings of the loop that a check replaces."""


def read(path: Path) -> Experiment:
    """An experiment file, with the files that it extends."""
    return experiment_from(with_variant(layered(config_files(path)), None, path.stem), path)


def train_cell(experiment: Experiment, method: Method, column: Column, resolver: ParserResolver) -> float:
    """Train a cell for one round and return the value that its table would show."""
    parts = built(resolved(resolver, experiment, method, column, {}))
    data, config = parts["data"], parts["loop"]
    loop = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in OWN}
    shrink(data)
    share = min(1.0, 2 / data.num_clients)
    made = fit(parts["algorithm"], parts["task"], data, 1, progress=False, participation=share, eval_clients=2, **loop)
    metric = metric_from(method.report.over(experiment.report), parts["task"].better, False)
    return float(made.metrics[metric.column][-1])


def built(config: dict[str, Any]) -> dict[str, Any]:
    """The objects of a full config."""
    parser = build_parser()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(config))
        file.flush()
        return dict(instantiate(parser, parse(parser, ["--config", file.name])))


def shrink(data: Any) -> None:
    """Give the data random images, few for each client."""
    if not isinstance(data, ImageData):
        sys.exit(f"{data.name} has no images")
    few = {"train_size": IMAGES, "test_size": 4, "min_size": 6, "alpha": 1.0}
    for name, value in few.items():  # of so few images a small α would leave clients with a single one
        if getattr(data.partition, name, None) is not None:
            object.__setattr__(data.partition, name, value)
    count = max(5 * IMAGES * data.num_clients, 6 * data.spec.num_classes)
    channels, height, width = data.spec.shape
    kinds = len(getattr(data, "corruptions", [None]))  # CIFAR-10-C has all images under each corruption
    images = torch.randint(0, 256, (kinds * count, height, width, channels), dtype=torch.uint8)
    labels = (torch.arange(count) % data.spec.num_classes).repeat(kinds)
    owners = (torch.arange(count) % data.num_clients, tuple(map(str, range(data.num_clients))))
    natural = owners if type(data.partition).__name__ == "Natural" else (None, ())
    data.load = lambda: Samples(images, labels, 0 if kinds > 1 else count // 2, *natural)  # type: ignore[method-assign]


def main() -> None:
    """Print a line per cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rows", nargs="*", default=["*"])
    parser.add_argument("--columns", nargs="*", default=["*"])
    args = parser.parse_args()
    resolver = ParserResolver()
    for experiment in map(read, args.files):
        for method, column in product(experiment.methods, experiment.columns):
            if not (fits(method.label, args.rows) and fits(column.label, args.columns)):
                continue
            start = time.perf_counter()
            value = train_cell(experiment, method, column, resolver)
            words = experiment.name, method.label, column.label, f"{value:.3f}", f"{time.perf_counter() - start:.0f} s"
            print(" | ".join(words), flush=True)


def fits(label: str, patterns: list[str]) -> bool:
    """Whether a label is wanted."""
    return any(fnmatch(label, pattern) for pattern in patterns)


if __name__ == "__main__":
    main()
