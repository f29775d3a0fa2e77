"""Exceptions that nobody foresaw: one line, a traceback on request, and no directory without a result."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pfl_lightning.cli.boundary import guard, take_traceback_option
from pfl_lightning.cli.failure import LONGEST, describe
from pfl_lightning.cli.fit import run
from pfl_lightning.cli.status import Status
from pfl_lightning.foundation.errors import ConfigError, RunError
from tests.cli.test_fit import ROOT, SMALL, _elsewhere  # noqa: F401 (a fixture)

OWN = """\
from pfl_lightning.algorithms import FedAvg

class Wrong(FedAvg):
    def aggregate(self, server, uploads):
        super().aggregate(server, uploads)
        if server.round == {round}:
            {action}
"""


@pytest.fixture
def own(tmp_path):
    """Write an algorithm that fails in a round; returns the words of a command that uses it."""

    def write(round_: int, action: str) -> list[str]:
        (tmp_path / "wrong.py").write_text(OWN.format(round=round_, action=action))
        return [*SMALL, "--algorithm", "wrong.Wrong", "--run_dir", "new/out"]

    yield write
    sys.modules.pop("wrong", None)


@pytest.mark.parametrize("devices", ["1", "2"])
def test_an_error_in_the_first_round_is_one_line_and_leaves_nothing(devices, own, tmp_path, capfd):
    words = own(1, "{}['colour']")
    assert run([*words, "--fabric.devices", devices]) == 1
    err = capfd.readouterr().err
    assert err.startswith("pfl-fit: error: Wrong.aggregate (wrong.py, line 7): KeyError: 'colour'; add --traceback")
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("devices", ["1", "2"])
def test_an_error_in_a_later_round_keeps_the_results_and_the_traceback(devices, own, tmp_path, capfd):
    assert run([*own(2, "1 / 0"), "--fabric.devices", devices]) == 1
    err = capfd.readouterr().err
    assert "ZeroDivisionError: division by zero; " in err
    assert err.endswith("the traceback is in new/out/error.txt\n")
    assert err.count("\n") == 1
    assert (tmp_path / "new/out/metrics.csv").read_text().count("\n") == 2
    text = (tmp_path / "new/out/error.txt").read_text()
    assert "Traceback (most recent call last)" in text
    assert "1 / 0" in text


def test_the_traceback_is_not_written_through_a_link(own, tmp_path, capfd):
    """A run directory may be somebody else's."""
    (tmp_path / "mine").write_text("precious")
    action = f"from pathlib import Path; Path('new/out/error.txt').symlink_to({str(tmp_path / 'mine')!r}); 1 / 0"
    assert run([*own(2, action), "--fabric.devices", "1"]) == 1
    assert (tmp_path / "mine").read_text() == "precious"
    assert capfd.readouterr().err.endswith("add --traceback to see where\n")


def test_a_directory_that_was_there_before_stays(own, tmp_path):
    (tmp_path / "new/out").mkdir(parents=True)
    assert run([*own(1, "1 / 0"), "--fabric.devices", "1"]) == 1
    assert list((tmp_path / "new/out").iterdir()) == []


def test_an_error_on_another_rank_alone_is_reported_once(own, stop, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("pfl_lightning.cli.boundary.ERROR_GRACE_SECONDS", 0.1)
    action = "import torch.distributed as dist; dist.get_rank() == 1 and {}['colour']"
    assert run([*own(1, action), "--fabric.devices", "2"], stop) == 1
    err = capfd.readouterr().err
    assert "KeyError: 'colour'" in err
    assert err.count("pfl-fit: error: ") == 1
    assert not (tmp_path / "new").exists()


def test_code_of_the_user_that_exits_is_an_error(own, tmp_path, capfd):
    assert run([*own(1, "raise SystemExit(0)"), "--fabric.devices", "1"]) == 1
    assert "Wrong.aggregate (wrong.py, line 7): SystemExit: 0; " in capfd.readouterr().err


def test_the_traceback_is_shown_on_request(own, capfd):
    assert run([*own(1, "1 / 0"), "--fabric.devices", "1", "--traceback"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("Traceback (most recent call last)")
    assert err.endswith("pfl-fit: error: Wrong.aggregate (wrong.py, line 7): ZeroDivisionError: division by zero\n")


def test_a_place_in_this_package_is_named_where_no_user_code_is_involved():
    with pytest.raises(AttributeError) as caught:
        Status("text")  # type: ignore[arg-type]
    assert describe(caught.value).startswith("Status.__init__ (pfl_lightning/cli/status.py, line ")


def test_long_and_empty_messages():
    assert describe(ValueError("\n first \n second")) == "ValueError: first"
    assert describe(ValueError()) == "ValueError"
    assert len(describe(ValueError("x" * 10_000))) < LONGEST + 20


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (ConfigError("a: b"), 2, "prog: error: a: b\n"),
        (RunError("two\nlines"), 1, "prog: error: two lines\n"),
        (KeyError("x"), 1, "prog: error: KeyError: 'x'; add --traceback to see where\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(), 0, ""),
        (SystemExit(3), 3, ""),
        (SystemExit("text"), 1, ""),
    ],
)
def test_every_command_has_the_same_exit_codes(failure, code, line, capfd):
    def work() -> int:
        raise failure

    work.__code__ = work.__code__.replace(co_filename="<nowhere>")
    assert guard("prog", work) == code
    assert capfd.readouterr().err == line


def test_the_traceback_option_is_not_part_of_the_config():
    assert take_traceback_option(["--seed", "1", "--traceback"]) == (["--seed", "1"], True)
    assert take_traceback_option(["--seed", "1"]) == (["--seed", "1"], False)


def test_a_reader_that_leaves_early_is_no_error():
    code = "from pfl_lightning.cli.fit import main; main(['--help'])"
    command = f'{sys.executable} -c "{code}" | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
