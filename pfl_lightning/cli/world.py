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
    """Another program that has started the ranks already."""

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
        local = _number("LOCAL_WORLD_SIZE", 1)
        ranks = _number("WORLD_SIZE", local)
        if ranks % local:
            raise ConfigError(
                f"fabric.devices: torchrun has started {_count(ranks, 'rank')}, {local} of them here; "
                "start the same number on every node"
            )
        return Launcher("torchrun", World(local, ranks // local))
    if SLURMEnvironment.detect():
        return Launcher("SLURM", _slurm_world())
    return None


def usable_cores() -> int:
    """Physical cores that this job may use. Affinity, cgroup limits and SLURM are taken into account."""
    cores = int(joblib.cpu_count(only_physical_cores=True))
    return min(cores, _number("SLURM_CPUS_ON_NODE", cores))


def _slurm_world() -> World:
    """Tasks per node and nodes of this SLURM job. Every node must have the same number of tasks."""
    tasks, nodes = _number("SLURM_NTASKS", 1), _number("SLURM_NNODES", 1)
    if tasks * nodes > 1 and "SLURM_STEP_ID" not in os.environ:  # this process would wait for others in vain
        raise ConfigError(
            f"fabric.devices: this job has {_count(tasks, 'task')} on {_count(nodes, 'node')}, but "
            "srun has not started this process; use srun pfl-fit …, or see pfl-fit --sbatch"
        )
    per_node = _number("SLURM_NTASKS_PER_NODE", 1) if "SLURM_NTASKS_PER_NODE" in os.environ else None
    if per_node is None and tasks == nodes == 1:
        return World(1, 1)
    if per_node is None:
        raise ConfigError(
            f"fabric.devices: SLURM has started {_count(tasks, 'task')} on {_count(nodes, 'node')} without "
            f"--ntasks-per-node; use --nodes={nodes} --ntasks-per-node={-(-tasks // nodes)} in place of --ntasks"
        )
    if per_node * nodes != tasks:
        raise ConfigError(
            f"fabric.devices: SLURM has started {_count(tasks, 'task')}, but --nodes={nodes} "
            f"--ntasks-per-node={per_node} makes {per_node * nodes}; give srun the same numbers as the job"
        )
    return World(per_node, nodes)


def _number(variable: str, default: int) -> int:
    """A number of the launcher, 1 or more."""
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{variable}: {text!r} is not a number of 1 or more; this environment variable is wrong")
    return int(text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
