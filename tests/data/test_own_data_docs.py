"""Every config in docs/own_data.md trains, exactly as it is printed there."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pfl_lightning.cli.fit import run
from tests.helpers.own_files import write_arrays, write_folders, write_image_table, write_table

PAGE = Path(__file__).parents[2] / "docs" / "own_data.md"
TEXT = PAGE.read_text()
CONFIGS = re.findall(r"(?:<!-- files: ([\w ]+) -->\n)?```yaml\n(.*?)```", TEXT, re.DOTALL)
MODULES = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.DOTALL))


def write_tokens(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(folder / "reviews.npz", x=rng.integers(0, 50, (30, 8)), y=rng.integers(0, 2, 30), client=np.arange(30) % 3)


def write_hugging_face(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {
        "values": [[float(i), 1.0] for i in range(24)],
        "kind": [i % 2 for i in range(24)],
        "device": ["a", "b"] * 12,
    }
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "measurements")


FILES: dict[str, Callable[[Path], object]] = {
    "": lambda folder: None,
    "folders": lambda folder: write_folders(folder / "photos"),
    "image table": write_image_table,
    "table": lambda folder: write_table(folder / "people.csv"),
    "arrays": lambda folder: write_arrays(folder / "clients"),
    "tokens": write_tokens,
    "hugging face": write_hugging_face,
}


def test_the_page_shows_every_form() -> None:
    shown = " ".join(config for _, config in CONFIGS)
    for form in ("ClientFolders", "ImageTable", "Table", "ClientArrays", "FromDataset", "transforms", "my_data.Rings"):
        assert form in shown
    assert set(MODULES) == {"my_net.py", "my_data.py"}


@pytest.mark.parametrize(("files", "config"), CONFIGS, ids=[str(number) for number in range(len(CONFIGS))])
def test_configs_train_as_printed(files: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PFL_DATA", raising=False)
    FILES[files](tmp_path)
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
        sys.modules.pop(name.removesuffix(".py"), None)
    (tmp_path / "mine.yaml").write_text(config)
    short = ["--loop.rounds", "2", "--fabric.devices", "1", "--run_dir", "out"]
    assert run(["--config", "mine.yaml", *short]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["rounds"] == 2
