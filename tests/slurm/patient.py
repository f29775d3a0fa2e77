"""FedOBP that waits in round 7 while a file is there, so that tests can disturb it on any machine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms import FedOBP
from pfl_lightning.model.client import ClientModule

SLOW = "PFL_TEST_SLOW"
ROUND = 7


@dataclass
class Patient(FedOBP):
    """The same results as FedOBP."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        while client.round == ROUND and Path(os.environ.get(SLOW, "/nowhere")).exists():
            client.check_for_stop()
            time.sleep(0.05)
