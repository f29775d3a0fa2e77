"""The engine that the settings ask for."""

from __future__ import annotations

from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.engine.engine import Engine
from pfl_lightning.engine.sequential import Sequential
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.compiled import compile_net
from pfl_lightning.model.local_training import LocalTraining
from pfl_lightning.tasks.task import Task


def build_engine(
    config: LoopConfig, fabric: Fabric, task: Task, algorithm: Algorithm, data: FederatedData, comm: Comm, seed: int
) -> Engine:
    """Make the live models of this rank and the engine that trains clients on them."""
    local = LocalTraining(
        config.local_epochs,
        config.batch_size,
        config.test_batch_size,
        config.channels_last,
        None if config.lr_schedule == "constant" else config.lr_factor,
        None if config.test_every == 1 else config.tests,
        config.finetune_lr,
        config.finetune_part,
    )
    parts = (task, data, local, fabric, seed)
    engine: Engine
    if config.clients_per_step > 1:
        from pfl_lightning.engine.lockstep import LockstepClient
        from pfl_lightning.engine.vectorized import Vectorized

        def make(task: Task, memory: tuple[Tensor, Tensor]) -> LockstepClient:
            return LockstepClient(task, data, local, fabric, seed, comm.stop, comm.leave_round, memory)

        engine = Vectorized(config.clients_per_step, task, make, algorithm, comm, config.channels_last)
        clients: list[ClientModule] = [*engine.clients]
    elif config.ranks_per_client > 1:
        from pfl_lightning.engine.teams import Team, TeamClient, Teams

        team = Team(comm, config.ranks_per_client)
        engine = Teams(team, TeamClient(*parts, team=team), algorithm, comm)
        clients = [engine.client]
    else:
        engine = Sequential(ClientModule(*parts, comm.stop, comm.leave_round), algorithm, comm)
        clients = [engine.client]
    for client in clients if config.compile else ():
        compile_net(client, str(config.compile), config.compile_mode)
    return engine
