from __future__ import annotations

import sys
import weakref

import joblib
import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy

from pfl_lightning.cli.launch import FabricConfig, launch, make_fabric, usable_cores
from pfl_lightning.foundation.errors import ConfigError


@pytest.fixture
def _eight_cores(monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda only_physical_cores: 8 if only_physical_cores else 16)
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_NTASKS", "SLURM_JOB_NAME", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_eight_cores")
def test_auto_is_a_rank_per_physical_core_but_never_more_than_clients_in_a_round():
    config = FabricConfig(accelerator="cpu")
    assert len(make_fabric(config, cohort_size=100)._connector._parallel_devices) == 8
    assert len(make_fabric(config, cohort_size=3)._connector._parallel_devices) == 3
    assert len(make_fabric(config, 3, ranks_per_client=2)._connector._parallel_devices) == 6
    assert len(make_fabric(config, 100, ranks_per_client=3)._connector._parallel_devices) == 6


@pytest.mark.usefixtures("_eight_cores")
def test_one_rank_needs_no_process_group_and_every_rank_has_one_thread():
    torch.set_num_threads(2)
    fabric = make_fabric(FabricConfig(accelerator="cpu"), cohort_size=1)
    assert not isinstance(fabric.strategy, DDPStrategy)
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("_eight_cores")
def test_slurm_limits_the_cores(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "5")
    assert usable_cores() == 5


@pytest.mark.usefixtures("_eight_cores")
def test_under_torchrun_the_launcher_says_how_many(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    fabric = make_fabric(FabricConfig(accelerator="cpu", num_nodes=2), cohort_size=100)
    assert isinstance(fabric.strategy, DDPStrategy)
    assert fabric.strategy.num_processes == 4


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="accelerator: 'cuda' is not allowed; use cpu or auto"):
        FabricConfig(accelerator="cuda")


@pytest.mark.parametrize("code", [0, 1])
def test_a_rank_leaves_its_group_before_python_shuts_down(code):
    """A thread of the group that outlives Python aborts the process when it lets go of its tensors. The group ends its
    threads when it goes, which is when nobody refers to it any more.
    """
    groups = []

    def work(fabric: Fabric) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        groups.append(weakref.ref(dist.group.WORLD))
        if code:
            sys.exit(code)

    assert launch(Fabric(accelerator="cpu", devices=1), work) == code
    assert not dist.is_initialized()
    assert [group() for group in groups] == [None]
