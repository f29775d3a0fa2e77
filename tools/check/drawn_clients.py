"""The rows of a comparison over clients that were drawn in some round, and over those that never were.

python tools/check/drawn_clients.py docs/results/fashion10k/cells

It reads a comparison's cells/*.json only. A client that was never drawn has no value in a column `…_after`, so the
cells that report such a column tell which clients these are. Cells with the same seed draw the same clients.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

Values = NDArray[np.float64]
Cells = Mapping[str, Mapping[int, Values]]


def read(folder: Path) -> tuple[dict[str, dict[int, Values]], dict[int, NDArray[np.bool_]]]:
    """Method → seed → accuracy of each client in %, and seed → whether each client was drawn."""
    values: dict[str, dict[int, Values]] = {}
    drawn: dict[int, NDArray[np.bool_]] = {}
    for path in sorted(folder.glob("*.json")):
        cell: dict[str, Any] = json.loads(path.read_text())
        clients = 100 * np.array(cell["clients"], dtype=np.float64)
        seed = int(cell["seed"])
        values.setdefault(str(cell["method"]), {})[seed] = clients
        if str(cell["metric"]).endswith("_after") and np.isnan(clients).any():
            known = drawn.setdefault(seed, ~np.isnan(clients))
            if not np.array_equal(known, ~np.isnan(clients)):
                raise SystemExit(f"drawn_clients: error: {path} has other clients drawn than the cells before it")
    if not values:
        raise SystemExit(f"drawn_clients: error: {folder} has no cells")
    return values, drawn


def difference(own: Mapping[int, Values], other: Mapping[int, Values], drawn: Mapping[int, NDArray[np.bool_]]) -> str:
    """Mean difference over drawn clients with its 95 % interval. A client's seeds are averaged first."""
    seeds = [seed for seed in drawn if seed in own and seed in other]
    rows = np.array([np.where(drawn[seed], own[seed] - other[seed], np.nan) for seed in seeds])
    rows = rows[:, ~np.isnan(rows).all(axis=0)]
    found = np.nanmean(rows, axis=0)
    half = float(t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)))
    mean = float(found.mean())
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def table(values: Cells, drawn: Mapping[int, NDArray[np.bool_]], reference: str) -> str:
    """The Markdown table, in the order of the mean over drawn clients."""
    rows: list[tuple[float, str]] = []
    for method, by_seed in values.items():
        seeds = [seed for seed in by_seed if seed in drawn]
        inside = np.concatenate([by_seed[seed][drawn[seed]] for seed in seeds]).mean()
        outside = np.concatenate([by_seed[seed][~drawn[seed]] for seed in seeds])
        never = "" if np.isnan(outside).all() else f"{outside.mean():.1f}"
        apart = "" if method == reference else difference(by_seed, values[reference], drawn)
        rows.append((float(inside), f"| {method} | {inside:.1f} | {never} | {apart} |"))
    head = [f"| method | drawn | never drawn | drawn, against {reference} |", "| --- | ---: | ---: | ---: |"]
    return "\n".join([*head, *(text for _, text in sorted(rows, key=lambda row: -row[0]))])


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path, help="folder with the cells of a comparison")
    parser.add_argument("--reference", default="Local", help="row that the others are compared with")
    options = parser.parse_args(argv)
    values, drawn = read(options.cells)
    for seed, clients in sorted(drawn.items()):
        print(f"seed {seed}: {int((~clients).sum())} of {len(clients)} clients were never drawn")
    print(table(values, drawn, options.reference))


if __name__ == "__main__":
    main()
