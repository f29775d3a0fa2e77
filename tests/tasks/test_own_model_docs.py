"""Every example in docs/own_model.md runs, exactly as it is printed there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from pfl_lightning.cli.fit import run

PAGE = Path(__file__).parents[2] / "docs" / "own_model.md"
TEXT = PAGE.read_text()
CONFIGS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
MODULES = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.DOTALL))
SCRIPTS = [text for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if text not in MODULES.values()]


@pytest.fixture(autouse=True)
def _beside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
        sys.modules.pop(name.removesuffix(".py"), None)


def test_the_page_shows_everything() -> None:
    assert set(MODULES) == {"my_module.py", "my_net.py", "my_callback.py"}
    assert len(CONFIGS) == 5
    assert len(SCRIPTS) == 1


@pytest.mark.parametrize("config", CONFIGS, ids=["module", "head", "net", "loggers", "callbacks"])
def test_configs_train_as_printed(config, tmp_path):
    (tmp_path / "mine.yaml").write_text(config)
    short = ["--loop.rounds", "2", "--fabric.devices", "1", "--run_dir", "out"]
    assert run(["--config", "mine.yaml", *short]) == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rounds"] == 2


def test_the_script_prints_what_it_says(capsys):
    exec(compile(SCRIPTS[0], "own_model.md", "exec"), {})
    out = capsys.readouterr().out
    assert "FitResult(FedPer on Fashion10k, 2 of 2 rounds, all_acc_before 0." in out
    assert re.search(r"tensor\(\[\d, \d, \d, \d\]\)", out)
