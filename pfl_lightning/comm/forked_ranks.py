"""Ranks on one machine, forked from one process."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch.distributed as dist
from lightning.fabric.strategies.ddp import DDPStrategy
from typing_extensions import override


class ForkedRanks(DDPStrategy):
    """CPU ranks that meet at a port which this process holds.

    Lightning picks a free port and gives it back. Another program can take it before rank 0 listens there, and every
    later launch of the process uses the same port again.

    Args:
        timeout: how long ranks wait for each other.
    """

    def __init__(self, timeout: timedelta = timedelta(minutes=30)) -> None:
        super().__init__(process_group_backend="gloo", start_method="fork", timeout=timeout)
        self._wait = timeout
        self._meeting_point = socket.create_server(("127.0.0.1", 0))

    @override
    def setup_environment(self) -> None:
        """Called on every rank: join the group of all ranks."""
        host, port = self._meeting_point.getsockname()
        rank, world = self.local_rank, self.num_processes
        first = rank == 0
        listening = os.dup(self._meeting_point.fileno()) if first else None
        # the store based on libuv cannot take over a socket in torch 2.6
        store = dist.TCPStore(  # type: ignore[attr-defined]  # torch exports it without saying so
            host, port, world, first, self._wait, master_listen_fd=listening, use_libuv=False
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=self._wait)
        super().setup_environment()
