"""pfl-report's mistakes. The pictures it draws are in tests/report."""

from __future__ import annotations

import pytest

from pfl_lightning.cli.report import main


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "the following arguments are required: run; see pfl-report --help"),
        ("nowhere", "run: there is no directory nowhere"),
        ("nowhere --color", "unrecognized arguments: --color; see pfl-report --help"),
        ("damaged", "run: damaged is not the directory of a run: it has no config.yaml"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/masks.safetensors").write_bytes(b"no")
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == 2
    err = capfd.readouterr().err
    assert err.startswith(f"pfl-report: error: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version(word, capfd):
    with pytest.raises(SystemExit) as left:
        main([word])
    assert left.value.code == 0
    assert "pfl-report" in capfd.readouterr().out
