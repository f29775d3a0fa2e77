"""From one command to all ranks: how many there are, how they start, and how they end."""

from __future__ import annotations

import logging
import multiprocessing
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal

import joblib
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.strategy import Strategy
from torch.multiprocessing.spawn import ProcessExitedException

from pfl_lightning.allocator import reuse_memory
from pfl_lightning.errors import ConfigError, RunError, require

INTERRUPTED = 130


@dataclass(frozen=True)
class FabricConfig:
    """Where to run."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is a GPU, else CPU."""
    devices: int | Literal["auto"] = "auto"
    """Ranks per node. auto: every GPU; on CPU one single-thread rank per physical core the job may use; never more
    than a cohort has clients, times loop.ranks_per_client."""
    num_nodes: int = 1
    """Machines, under SLURM or torchrun."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true"
    """Precision of the forward and backward pass; 16-mixed on GPUs only."""
    timeout: float = 600.0
    """Seconds that ranks wait for each other before the run ends and names the rank that does not answer: more than
    the longest client takes."""
    reuse_memory: bool = True
    """On CPUs, keep memory that is freed for the next batch instead of giving it back to the system; needs glibc."""

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.devices == "auto" or self.devices >= 1, "devices", self.devices, "auto or a whole number >= 1")
        require(self.timeout > 0, "timeout", self.timeout, "a number above 0")
        require(self.num_nodes >= 1, "num_nodes", self.num_nodes, "a whole number >= 1")
        has_gpu = torch.cuda.is_available()
        require(self.accelerator != "cuda" or has_gpu, "accelerator", "cuda", "cpu or auto: no CUDA device is here")
        fits = self.precision != "16-mixed" or self.on_gpu
        require(fits, "precision", self.precision, "32-true, bf16-mixed or 64-true without a GPU")
        if self.on_gpu and self.devices != "auto":
            require(
                self.devices <= (n := torch.cuda.device_count()), "devices", self.devices, f"at most {n} (GPUs here)"
            )

    @property
    def on_gpu(self) -> bool:
        """Whether the run is on CUDA devices."""
        return self.accelerator == "cuda" or (self.accelerator == "auto" and torch.cuda.is_available())


def usable_cores() -> int:
    """Physical cores that this job may use: affinity, cgroup limits and SLURM considered."""
    cores = int(joblib.cpu_count(only_physical_cores=True))
    return min(cores, int(os.environ.get("SLURM_CPUS_ON_NODE", cores)))


def make_fabric(config: FabricConfig, cohort_size: int, ranks_per_client: int = 1) -> Fabric:
    """A Fabric, not launched yet."""
    # banners, and news about processes: errors are said by us
    for name in ("lightning.fabric", "lightning.pytorch", "lightning_utilities", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "The `srun` command is available")
    if not config.on_gpu:
        torch.set_num_threads(1)  # before anything runs in parallel: a forked rank cannot use its parent's threads
        if config.reuse_memory:
            reuse_memory()
    devices: int | str = config.devices
    managed = SLURMEnvironment.detect() or TorchElasticEnvironment.detect()
    if devices == "auto":
        if managed:
            devices = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE", "1"))
        else:
            available = torch.cuda.device_count() if config.on_gpu else usable_cores()
            useful = min(available, -(-cohort_size * ranks_per_client // config.num_nodes))
            devices = max(1, useful // ranks_per_client * ranks_per_client)
    if config.num_nodes > 1 and not managed:
        raise ConfigError(
            f"fabric.num_nodes: {config.num_nodes} needs SLURM (srun) or torchrun to start the other nodes"
        )
    strategy: str | Strategy = "auto"
    if int(devices) * config.num_nodes > 1:
        timeout = timedelta(seconds=config.timeout)
        if config.on_gpu:
            strategy = DDPStrategy(process_group_backend="cpu:gloo,cuda:nccl", timeout=timeout)
        else:
            start: Literal["popen", "fork"] = "popen" if managed else "fork"
            strategy = DDPStrategy(process_group_backend="gloo", start_method=start, timeout=timeout)
    return Fabric(
        accelerator="cuda" if config.on_gpu else "cpu",
        devices=devices,
        num_nodes=config.num_nodes,
        precision=config.precision,
        strategy=strategy,
    )


def launch(fabric: Fabric, work: Callable[[Fabric], None]) -> int:
    """Run `work` on every rank; returns the exit code. A rank that ends with `SystemExit` sets it."""
    try:
        fabric.launch(partial(_on_rank, work=work))
        return 0
    except ProcessExitedException as error:
        if error.signal_name:
            raise RunError(f"rank {error.error_index} was ended by {error.signal_name}") from error
        return int(error.exit_code)  # a forked rank has said what was wrong and left with a code
    except dist.DistError as error:  # there is no group yet that could say who is missing
        reason = str(error).partition("\n")[0]
        raise RunError(f"the ranks did not find each other within fabric.timeout: {reason}") from error
    except SystemExit as end:  # the only rank, in this process
        return int(end.code or 0)
    except KeyboardInterrupt:  # a second Ctrl-C
        for child in multiprocessing.active_children():
            child.kill()
        return INTERRUPTED


def _on_rank(fabric: Fabric, work: Callable[[Fabric], None]) -> None:
    """Do the work, then leave the group of ranks.

    Its threads may still hold the tensors of the last collective. One that lets go of them when Python is already
    shutting down aborts the process, and a run that has come to its end counts as failed.
    """
    try:
        work(fabric)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
