"""A few of the faults that the tools in tools/faults make by the dozen, and a check that the tools see leftovers."""

from __future__ import annotations

import re

import pytest

from tests.checkpoint.runs import saved_run
from tools.faults import damage_files, kill_runs
from tools.faults.tiny_run import names


def test_killed_runs_end_like_undisturbed_ones(capfd):
    assert kill_runs.main(["--runs", "2", "--seed", "1", "--devices", "1"]) == 0
    out = capfd.readouterr().out
    assert re.search("killed while a file was being written: [12]", out)
    assert "different from the undisturbed run: 0" in out
    assert "files more or fewer than those of the undisturbed run: 0" in out


def test_runs_with_a_damaged_file_end_like_untouched_ones(capfd):
    assert damage_files.main(["--cases", "3", "--seed", "1"]) == 0
    out = capfd.readouterr().out
    assert "3 times one of " in out
    assert "files more or fewer than those of the untouched run: 0" in out


@pytest.mark.parametrize("name", [".tmpAbC123", ".00000003-server.safetensors.tmp", "00000001-server.safetensors"])
def test_the_tools_see_every_leftover_file(name, tmp_path):
    saved_run(tmp_path, rounds=3)
    before = names(tmp_path)
    (tmp_path / "checkpoints" / name).write_bytes(b"half")
    assert names(tmp_path) ^ before == {f"checkpoints/{name}"}
