from __future__ import annotations

import importlib

import pytest

from pfl_lightning.foundation.own_sources import source_digest


@pytest.fixture
def method(tmp_path, monkeypatch):
    """A class in a file of its own, with a helper beside it that is not mentioned by the class."""
    (tmp_path / "own_helper.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "own_other.py").write_text("A = 1\n")
    (tmp_path / "own_method.py").write_text(
        "import json\nfrom own_helper import half\nfrom pfl_lightning.algorithms import FedAvg\n\n"
        "class Mine(FedAvg):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own_method", "own_other"):
        importlib.import_module(name)
    return tmp_path


def test_a_change_of_the_class_or_of_its_helper_changes_the_digest(method):
    first = source_digest("own_method.Mine")
    assert first == source_digest("own_method.Mine")
    (method / "own_other.py").write_text("A = 2\n")
    assert source_digest("own_method.Mine") == first
    seen = {first}
    for name in ("own_helper.py", "own_method.py"):
        (method / name).write_text((method / name).read_text() + "\n# changed\n")
        seen.add(source_digest("own_method.Mine"))
    assert len(seen) == 3


@pytest.mark.parametrize("name", ["pfl_lightning.algorithms.FedAvg", "torch.nn.ReLU", "never_imported.Mine", "Mine"])
def test_only_own_code_has_a_digest(name):
    assert source_digest(name) is None
