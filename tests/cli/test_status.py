"""The line that a terminal shows in the first seconds."""

from __future__ import annotations

import io

import pytest

from pfl_lightning.cli.fit import run
from pfl_lightning.cli.status import Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _first_process(monkeypatch):
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_shows_one_line_that_disappears():
    terminal = Terminal()
    status = Status(terminal)
    status.say("loading PyTorch")
    status.say("reading the config")
    status.clear()
    assert terminal.getvalue() == "\r\x1b[Kloading PyTorch ...\r\r\x1b[Kreading the config ...\r\r\x1b[K"


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("RANK", "1"), ("SLURM_PROCID", "3")])
def test_other_ranks_and_simple_terminals_show_nothing(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    terminal = Terminal()
    Status(terminal).say("loading PyTorch")
    assert terminal.getvalue() == ""


def test_nothing_is_shown_in_a_pipe(capfd):
    assert run(["--algorithm", "Nobody"]) == 2
    assert "\r" not in capfd.readouterr().err


def test_the_command_says_what_it_is_doing(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert run(["--algorithm", "FedAvg", "--data.num_clients", "0"]) == 2
    said = terminal.getvalue()
    assert "loading PyTorch ..." in said
    assert "reading the config ..." in said
    assert said.split("\r\x1b[K")[-1].startswith("pfl-fit: error: data.num_clients: 0 is not allowed")
