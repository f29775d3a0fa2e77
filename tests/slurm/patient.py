"""FedOBP that takes its time while a file is there, so that tests can disturb it however fast the machine is."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms import FedOBP
from pfl_lightning.client import ClientModule

SLOW = "PFL_TEST_SLOW"


@dataclass
class Patient(FedOBP):
    """The same results as FedOBP."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        if Path(os.environ.get(SLOW, "/nowhere")).exists():
            time.sleep(0.1)
