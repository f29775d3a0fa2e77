"""Every config of the project builds: its keys, its classes, its net, and the method accepts the task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfl_lightning.cli.parser import build_parser, instantiate, parse
from pfl_lightning.data.federated import Samples
from pfl_lightning.model.layout import Layout
from pfl_lightning.tasks import Classification

FOLDER = Path(__file__).parents[1] / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_it_builds(config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PFL_DATA", str(tmp_path))  # nothing is fetched: what the data looks like is known without it
    parser = build_parser()
    parts = instantiate(parser, parse(parser, ["--config", str(config)]))
    task, data = parts["task"], parts["data"]
    monkeypatch.setattr(task, "weights", None, raising=False)  # of ImageNet: they would be fetched
    inputs = torch.zeros(2, *data.spec.shape)
    labels = torch.zeros(2, dtype=torch.int64) if isinstance(task, Classification) else torch.zeros(2, 1)
    data.samples = Samples(inputs, labels, 0)
    task.build(data.spec)
    parts["algorithm"].check(task, data)
    parts["algorithm"].modify_model(task)
    assert Layout.of(task).num_parameters > 0
    assert task.eval()(inputs).shape == (2, data.spec.num_classes)
    assert parts["loop"].rounds >= 1


def test_every_setting_is_used() -> None:
    used = "".join(path.read_text() for path in FOLDER.rglob("*.yaml"))
    for path in (FOLDER / "settings").glob("*.yaml"):
        assert path.name in used


def test_every_comment_names_its_own_command() -> None:
    for path in CONFIGS:
        assert f"pfl-fit --config configs/{path.name}" in path.read_text()
