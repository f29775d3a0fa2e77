"""Signals at awkward moments, ranks that hang, and nodes that see different disks: as a person meets them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from lightning.fabric import Fabric

import pfl_lightning.checkpoint.checkpoints as checkpoints
from pfl_lightning.cli import run_dir
from pfl_lightning.cli.fit import run
from pfl_lightning.cli.run_lock import LOCK_NAME, RunLock
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.data import Fashion10k
from pfl_lightning.foundation import slurm
from pfl_lightning.foundation.errors import ConfigError
from tests.cli.test_fit import ROOT, SMALL, _elsewhere  # noqa: F401 (a fixture)
from tests.cli.test_resume import JOB, rounds, same, steps
from tests.helpers.forked_fit import ForkedFit
from tests.helpers.ranks import run_on_ranks


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbs."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run([*JOB, "--run_dir", str(path)]) == 0
    return path


def signalling(function, *numbers: int):
    """The function, which sends signals to its process in the middle of its work."""

    def wrapped(*words, **options):
        for number in numbers:
            signal.raise_signal(number)
        return function(*words, **options)

    return wrapped


def test_a_signal_while_the_data_is_loaded_ends_before_the_first_round(stop, whole, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(Fashion10k, "load", signalling(Fashion10k.load, signal.SIGTERM, signal.SIGTERM))
    assert run([*JOB, "--run_dir", "cut"], stop) == 128 + signal.SIGTERM
    assert "Interrupted in round 1 of 6: metrics.csv holds 0 whole rounds." in capfd.readouterr().out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run(["--resume", "cut"]) == 0
    assert same(tmp_path / "cut", whole)
    assert rounds(tmp_path / "cut") == rounds(whole)
    assert steps(tmp_path / "cut") == steps(whole)


def test_signals_while_a_checkpoint_is_written_and_again_while_the_run_ends(stop, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "write_part", signalling(checkpoints.write_part, signal.SIGTERM))
    monkeypatch.setattr(slurm, "requeue", signalling(slurm.requeue, signal.SIGTERM, signal.SIGUSR1))
    assert run([*JOB, "--run_dir", "cut"], stop) == 128 + signal.SIGTERM
    assert rounds(tmp_path / "cut") == ["1"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run(["--resume", "cut"]) == 0
    assert same(tmp_path / "cut", whole)
    assert rounds(tmp_path / "cut") == rounds(whole)


def test_handlers_are_there_before_torch_is_imported():
    code = (
        "import sys, signal; from pfl_lightning.cli import fit; fit.run = lambda argv, stop: "
        "print('torch' in sys.modules, signal.getsignal(signal.SIGUSR1) == stop._on_signal) or 0; fit.main(['x'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False True\n", done.stderr


def is_asked_to_end(pid: str) -> bool:
    """Whether SIGTERM waits for a process that is stopped, or it has ended."""
    try:
        pending = re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return True
    return pending is None or bool(int(pending[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_rank_that_hangs_is_named_with_its_node(tmp_path):
    words = [*SMALL, "--loop.rounds", "100000", "--fabric.devices", "2", "--fabric.timeout", "5", "--run_dir", "cut"]
    with ForkedFit(words) as process:
        ranks, lines = [], []
        for line in process.stdout:
            if not ranks and line.startswith("[") and "all" in line:
                ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(ranks[1]), signal.SIGSTOP)
            if line.startswith("pfl-fit"):
                lines.append(line)
                while not is_asked_to_end(ranks[1]):  # the launcher has seen the end of the other rank
                    pass
                with suppress(ProcessLookupError):
                    os.kill(int(ranks[1]), signal.SIGKILL)  # what the launcher does after 30 s
        assert process.wait() == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"pfl-fit: error: rank 1 on {socket.gethostname()} did not answer in round ")
    assert lines[0].endswith("; pfl-fit --resume cut continues from the last checkpoint\n")


def test_ranks_that_do_not_find_each_other_get_one_line(tmp_path):
    """One of two machines was not started."""
    facts = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    facts |= {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [*SMALL, "--fabric.devices", "1", "--fabric.num_nodes", "2", "--fabric.timeout", "1", "--run_dir", "cut"]
    with ForkedFit(words, facts) as process:
        out = process.communicate()[0]
    assert process.returncode == 1
    assert out.startswith("pfl-fit: error: the ranks did not find each other within fabric.timeout: ")
    assert out.count("\n") == 1
    assert not (tmp_path / "cut").exists()


def torchrun(words: list[str], stdin: tuple[int, int]) -> None:
    """The launcher. What it starts reads from a pipe of ours."""
    from torch.distributed import run as launcher

    os.dup2(stdin[0], 0)
    os.close(stdin[1])
    launcher.main(words)


def test_torchrun_gives_the_bits_of_one_process(whole, tmp_path):
    """It starts two shells that tell their variables and wait. The ranks are forked with these, torch is there."""
    facts = "RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMP_"
    shell = ["sh", "-c", f"echo told $(env | grep -E '^({facts})'); read _; true"]
    words = ["--standalone", "--nproc-per-node", "2", "--no-python", *shell]
    stdin = os.pipe()
    with ForkedFit(words, main=partial(torchrun, stdin=stdin)) as launcher:
        lines = (line.split()[1:] for line in launcher.stdout if line.startswith("told "))
        told = [dict(word.split("=", 1) for word in words) for words in islice(lines, 2)]
        assert sorted(env["RANK"] for env in told) == ["0", "1"]
        ranks = [ForkedFit([*JOB, "--fabric.devices", "2", "--run_dir", "two"], env) for env in told]
        out = "".join(rank.communicate()[0] for rank in ranks)
        os.close(stdin[1])
        launcher.communicate()
    os.close(stdin[0])
    assert [launcher.returncode, *(rank.returncode for rank in ranks)] == [0, 0, 0], out
    assert same(tmp_path / "two", whole)
    assert "2 on cpu" in out


def test_a_directory_that_other_nodes_do_not_see_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "VISIBLE_SECONDS", 0.0)

    def work(fabric: Fabric) -> str:
        path = tmp_path / f"node{fabric.global_rank}"
        path.mkdir()
        ranks = Comm(fabric)
        ranks.hosts = ["node0", "node1"]
        if fabric.global_rank == 0:
            RunLock(path)
        try:
            run_dir.check_shared(path, ranks)
        except ConfigError as error:
            return str(error).replace(str(path), "PATH")
        return "none"

    assert (
        run_on_ranks(work, 2)
        == ["run_dir: PATH on node0 is not visible on node1; use a directory that all nodes share"] * 2
    )


def test_the_lock_names_its_holder_and_is_gone_with_it(tmp_path):
    code = "import sys, pathlib, time; from pfl_lightning.cli.run_lock import RunLock; l = RunLock(pathlib.Path('.')); "
    holder = subprocess.Popen(
        [sys.executable, "-c", code + "print(flush=True); time.sleep(99)"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(ConfigError, match=f"is in use by process {holder.pid} on {socket.gethostname()}; wait"):
        RunLock(tmp_path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert (tmp_path / LOCK_NAME).exists()
    RunLock(tmp_path).release()
