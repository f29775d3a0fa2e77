"""How many ranks SLURM or torchrun has started, and settings that contradict it."""

from __future__ import annotations

import os
import re

import pytest
from lightning.fabric.strategies.ddp import DDPStrategy

from pfl_lightning.cli.fit import run
from pfl_lightning.cli.launch import FabricConfig, make_fabric
from pfl_lightning.cli.world import World, find_launcher, usable_cores
from pfl_lightning.foundation.errors import ConfigError

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "RANK": "0", "GROUP_RANK": "0"}


@pytest.fixture
def started(monkeypatch):
    """Pretend that a launcher has started this process: sets its variables."""
    for name in os.environ:
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK"):
            monkeypatch.delenv(name)

    def start(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return start


def slurm(tasks: int, nodes: int, per_node: int | None = None) -> dict[str, str]:
    facts = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "pfl", "SLURM_NTASKS": str(tasks), "SLURM_NNODES": str(nodes)}
    facts |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}
    return facts if per_node is None else {**facts, "SLURM_NTASKS_PER_NODE": str(per_node)}


def test_slurm_says_how_many_nodes_there_are(started):
    """Without --fabric.num_nodes: two runs of one rank each would fight for the directory."""
    started(**slurm(tasks=2, nodes=2, per_node=1))
    assert find_launcher().world == World(1, 2)
    fabric = make_fabric(FabricConfig(accelerator="cpu"), cohort_size=100)
    assert isinstance(fabric.strategy, DDPStrategy)
    assert (fabric.strategy.num_nodes, fabric.strategy.num_processes) == (2, 1)


def test_torchrun_says_how_many_nodes_there_are(started):
    started(**TORCHRUN, LOCAL_RANK="0")
    assert find_launcher().world == World(4, 2)
    fabric = make_fabric(FabricConfig(accelerator="cpu"), cohort_size=100)
    assert fabric.strategy.num_processes == 4


def test_torchrun_with_different_nodes_is_refused(started):
    started(**{**TORCHRUN, "WORLD_SIZE": "6"})
    with pytest.raises(ConfigError, match=r"torchrun has started 6 ranks, 4 of them here; start the same number on ev"):
        find_launcher()


def test_without_a_launcher_there_is_one_machine(started):
    started()
    assert find_launcher() is None
    started(SLURM_NTASKS="4", SLURM_JOB_NAME="bash")  # an interactive job: the ranks are started by this process
    assert find_launcher() is None


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            slurm(4, 2),
            "4 tasks on 2 nodes without --ntasks-per-node; use --nodes=2 --ntasks-per-node=2 ",
        ),
        (
            slurm(3, 2),
            "3 tasks on 2 nodes without --ntasks-per-node; use --nodes=2 --ntasks-per-node=2 ",
        ),
        (
            slurm(1, 2),
            "1 task on 2 nodes without --ntasks-per-node; use --nodes=2 --ntasks-per-node=1 ",
        ),
        (slurm(1, 2, 2), "1 task, but --nodes=2 --ntasks-per-node=2 makes 4; "),
    ],
)
def test_tasks_that_are_not_the_same_on_every_node_are_refused(facts, line, started):
    started(**facts)
    with pytest.raises(ConfigError) as refused:
        make_fabric(FabricConfig(accelerator="cpu"), cohort_size=100)
    assert str(refused.value).startswith(f"fabric.devices: SLURM has started {line}")


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "2(x3)"])
@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_ON_NODE"])
def test_a_variable_that_is_no_number_is_named(name, value, started):
    started(**{**slurm(2, 1, 2), name: value})
    with pytest.raises(ConfigError, match=f"^{name}: {re.escape(repr(value))} is not a number of 1 or more"):
        usable_cores() if name == "SLURM_CPUS_ON_NODE" else find_launcher()


@pytest.mark.parametrize("facts", [slurm(2, 1, 2), slurm(2, 2), slurm(1, 2)])
def test_a_job_script_that_forgets_srun_gets_one_line(facts, started):
    """It starts one process, which would wait for the others until the timeout."""
    del facts["SLURM_STEP_ID"]
    started(**facts)
    with pytest.raises(ConfigError, match=r"srun has not started this process; use srun pfl-fit"):
        find_launcher()
    started(**{**facts, "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "1"})
    assert find_launcher().world == World(1, 1)


def test_a_single_task_needs_no_numbers(started):
    started(**slurm(1, 1))
    assert find_launcher().world == World(1, 1)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"num_nodes": 1}, "fabric.num_nodes: 1 is not allowed; SLURM has started 2 nodes: use 2 or auto"),
        ({"devices": 1}, "fabric.devices: 1 is not allowed; SLURM has started 3 ranks per node: use 3 or auto"),
    ],
)
def test_settings_that_contradict_slurm_are_refused(settings, line, started):
    started(**slurm(6, 2, 3))
    with pytest.raises(ConfigError, match=line):
        make_fabric(FabricConfig(accelerator="cpu", **settings), cohort_size=100)
    make_fabric(FabricConfig(accelerator="cpu", devices=3, num_nodes=2), cohort_size=100)


def test_other_tasks_leave_the_word_to_rank_zero(started, monkeypatch, capfd):
    """All tasks meet the same mistake. The launcher kills the others when rank 0 has left, so they wait for that."""
    waits = []
    monkeypatch.setattr("pfl_lightning.cli.fit.let_rank_zero_report", lambda: waits.append(1))
    for rank, expected in (("0", 0), ("1", 1)):
        started(**{**slurm(4, 2), "SLURM_PROCID": rank})
        assert run(["--algorithm", "FedAvg", "--data.num_clients", "5"]) == 2
        assert len(waits) == expected
    assert "without --ntasks-per-node" in capfd.readouterr().err
