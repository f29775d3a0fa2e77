"""How many ranks there are: by the settings, or by SLURM or torchrun where one of them starts the processes."""

from __future__ import annotations

import os
from typing import NamedTuple

import joblib
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from pfl_lightning.foundation.errors import ConfigError


class World(NamedTuple):
    """Ranks on each node, and nodes."""

    devices: int
    nodes: int


class Launcher(NamedTuple):
    """A program outside of this one that has started the ranks already."""

    name: str
    world: World

    def check(self, devices: int | str, nodes: int | str) -> None:
        """Refuse settings that contradict it."""
        asked = {
            "devices": (devices, self.world.devices, "ranks per node"),
            "num_nodes": (nodes, self.world.nodes, "nodes"),
        }
        for key, (value, actual, unit) in asked.items():
            if value not in ("auto", actual):
                raise ConfigError(
                    f"fabric.{key}: {value} is not allowed; {self.name} has started {actual} {unit}: "
                    f"use {actual} or auto"
                )


def find_launcher() -> Launcher | None:
    """SLURM or torchrun, whichever has started this process, or None."""
    if TorchElasticEnvironment.detect():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return Launcher("torchrun", World(local, max(1, int(os.environ.get("WORLD_SIZE", local)) // local)))
    if SLURMEnvironment.detect():
        return Launcher("SLURM", _slurm_world())
    return None


def usable_cores() -> int:
    """Physical cores that this job may use. Affinity, cgroup limits and SLURM are taken into account."""
    cores = int(joblib.cpu_count(only_physical_cores=True))
    return min(cores, int(os.environ.get("SLURM_CPUS_ON_NODE", cores)))


def _slurm_world() -> World:
    """Tasks per node and nodes of this SLURM job. Every node must have the same number of tasks."""
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
    per_node = os.environ.get("SLURM_NTASKS_PER_NODE")
    if per_node is None and tasks == nodes == 1:
        return World(1, 1)
    if per_node is None:
        raise ConfigError(
            f"fabric.devices: SLURM has started {_count(tasks, 'task')} on {_count(nodes, 'node')} without "
            f"--ntasks-per-node; use --nodes={nodes} --ntasks-per-node={-(-tasks // nodes)} in place of --ntasks"
        )
    if int(per_node) * nodes != tasks:
        raise ConfigError(
            f"fabric.devices: SLURM has started {_count(tasks, 'task')}, but --nodes={nodes} "
            f"--ntasks-per-node={per_node} makes {int(per_node) * nodes}; give srun the same numbers as the job"
        )
    return World(int(per_node), nodes)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
