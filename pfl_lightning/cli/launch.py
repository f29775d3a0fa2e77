"""From one command to all ranks: how many there are, how they start, and how they end."""

from __future__ import annotations

import logging
import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.strategy import Strategy
from torch.multiprocessing.spawn import ProcessExitedException

from pfl_lightning.cli.boundary import INTERRUPTED, exit_code
from pfl_lightning.cli.world import World, find_launcher, usable_cores
from pfl_lightning.comm.forked_ranks import ForkedRanks
from pfl_lightning.foundation.allocator import reuse_memory
from pfl_lightning.foundation.determinism import be_deterministic
from pfl_lightning.foundation.errors import ConfigError, RunError, require


@dataclass(frozen=True)
class FabricConfig:
    """Where to run."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA if there is a GPU, else CPU."""
    devices: int | Literal["auto"] = "auto"
    """Ranks per node. auto: under SLURM or torchrun as many as it has started. Otherwise one rank per GPU, or on CPU
    one single-thread rank per physical core, but no more than the clients of a round times loop.ranks_per_client."""
    num_nodes: int | Literal["auto"] = "auto"
    """Number of machines. auto: as many as SLURM or torchrun has started, else 1."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true"
    """Precision of the forward and backward pass. 16-mixed on GPUs only."""
    timeout: float = 600.0
    """Seconds that ranks wait for each other. Then the run ends and names the rank that does not answer. Must be longer
    than the longest client takes."""
    reuse_memory: bool = True
    """On CPUs, keep freed memory for the next batch instead of returning it to the system. Needs glibc."""
    deterministic: bool = True
    """On GPUs, compute the same bits in every run on the same hardware: deterministic algorithms, no TF32. false may be
    faster. CPUs always do."""

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.devices == "auto" or self.devices >= 1, "devices", self.devices, "auto or a whole number >= 1")
        require(self.timeout > 0, "timeout", self.timeout, "a number above 0")
        auto = self.num_nodes == "auto"
        require(auto or self.num_nodes >= 1, "num_nodes", self.num_nodes, "auto or a whole number >= 1")  # type: ignore[operator]
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


def make_fabric(config: FabricConfig, cohort_size: int, ranks_per_client: int = 1) -> Fabric:
    """A Fabric not launched yet."""
    # banners, and news about processes: this package reports errors itself
    for name in ("lightning.fabric", "lightning.pytorch", "lightning_utilities", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "The `srun` command is available")
    if not config.on_gpu:
        torch.set_num_threads(1)  # before anything runs in parallel: a forked rank cannot use its parent's threads
        if config.reuse_memory:
            reuse_memory()
    elif config.deterministic:
        be_deterministic()
    launcher = find_launcher()
    if launcher:
        launcher.check(config.devices, config.num_nodes)
    world = launcher.world if launcher else _world_of_one_machine(config, cohort_size, ranks_per_client)
    strategy: str | Strategy = "auto"
    if world.devices * world.nodes > 1:
        timeout = timedelta(seconds=config.timeout)
        if config.on_gpu:
            strategy = DDPStrategy(process_group_backend="cpu:gloo,cuda:nccl", timeout=timeout)
        elif launcher:
            strategy = DDPStrategy(process_group_backend="gloo", timeout=timeout)
        else:
            strategy = ForkedRanks(timeout)
    return Fabric(
        accelerator="cuda" if config.on_gpu else "cpu",
        devices=world.devices,
        num_nodes=world.nodes,
        precision=config.precision,
        strategy=strategy,
    )


def _world_of_one_machine(config: FabricConfig, cohort_size: int, ranks_per_client: int) -> World:
    if config.num_nodes not in ("auto", 1):
        raise ConfigError(
            f"fabric.num_nodes: {config.num_nodes} needs SLURM (srun) or torchrun to start the other nodes"
        )
    if config.devices != "auto":
        return World(config.devices, 1)
    available = torch.cuda.device_count() if config.on_gpu else usable_cores()
    useful = min(available, cohort_size * ranks_per_client)
    return World(max(1, useful // ranks_per_client * ranks_per_client), 1)


def launch(fabric: Fabric, work: Callable[[Fabric], None]) -> int:
    """Run `work` on every rank and return the exit code. A rank sets it by `SystemExit`."""
    try:
        fabric.launch(partial(_on_rank, work=work))
        return 0
    except ProcessExitedException as error:
        if error.signal_name:
            raise RunError(f"rank {error.error_index} was ended by {error.signal_name}") from error
        return int(error.exit_code)  # a forked rank has reported the error and exited with this code
    except dist.DistError as error:  # the group that could say who is missing does not exist yet
        reason = str(error).partition("\n")[0]
        raise RunError(f"the ranks did not find each other within fabric.timeout: {reason}") from error
    except SystemExit as end:  # the only rank, in this process
        return exit_code(end)
    except KeyboardInterrupt:  # a second Ctrl-C
        for child in multiprocessing.active_children():
            child.kill()
        return INTERRUPTED


def _on_rank(fabric: Fabric, work: Callable[[Fabric], None]) -> None:
    """Do the work, then leave the group of ranks.

    The group's threads may still hold the tensors of the last collective. A thread that releases them while Python
    shuts down aborts the process, and a finished run would count as failed.
    """
    try:
        work(fabric)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
