"""Tiny files of the forms that users bring: image folders, tables, arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLIENTS = ("ann", "bob", "cem")
CLASSES = ("cat", "dog")


def random_image(rng: np.random.Generator, height: int = 20, width: int = 24, channels: int = 3) -> Image.Image:
    pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


def write_folders(folder: Path, each: int = 4, split: bool = False) -> Path:
    """Images of 20x24 for three clients and two classes, `each` per class (and per part)."""
    rng = np.random.default_rng(0)
    parts = ("train", "test") if split else ("",)
    for place in (folder / client / part / label for client in CLIENTS for part in parts for label in CLASSES):
        place.mkdir(parents=True)
        for number in range(each):
            random_image(rng).save(place / f"{number}.png")
    return folder


def write_image_table(folder: Path, rows: int = 24) -> Path:
    """A table of images with the columns path, label, client and split."""
    rng, lines = np.random.default_rng(0), ["path,label,client,split"]
    (folder / "images").mkdir(parents=True)
    for row in range(rows):
        random_image(rng).save(folder / "images" / f"{row}.png")
        part = "test" if row % 4 == 3 else "train"
        lines.append(f"images/{row}.png,{CLASSES[row % 2]},{CLIENTS[row % 3]},{part}")
    (folder / "images.csv").write_text("\n".join(lines) + "\n")
    return folder / "images.csv"


def write_table(path: Path, rows: int = 30) -> Path:
    """A table with the columns client, label, height and weight."""
    rng, lines = np.random.default_rng(0), ["client,label,height,weight"]
    for row in range(rows):
        height, weight = rng.normal(170 + 10 * (row % 2), 5), rng.normal(70, 5)
        lines.append(f"{CLIENTS[row % 3]},{row % 2},{height:.2f},{weight:.2f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_arrays(folder: Path, rows: int = 12) -> Path:
    """One .npz file with x and y for each client: five numbers per sample, two classes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for client in CLIENTS:
        y = np.arange(rows) % 2
        np.savez(folder / f"{client}.npz", x=rng.normal(size=(rows, 5)) + y[:, None], y=y)
    return folder
