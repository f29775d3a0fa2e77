"""A process of versions.py: a run of one version that does a round whenever it is told to.

    PYTHONPATH=CHECKOUT python tools/bench/version_worker.py FOLDER OPTIONS…

Each rank waits at the pipe `FOLDER/go-RANK` before a round, and writes the round's wall and CPU seconds to
`FOLDER/done-RANK` afterwards. Works with every version since 0.1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pfl_lightning.cli import fit
from pfl_lightning.loop import FederatedFabricLoop

FOLDER = Path(sys.argv[1])
plain_round = FederatedFabricLoop.round


def paced_round(loop: FederatedFabricLoop, *arguments: Any) -> Any:
    """A round, when it is this version's turn."""
    rank = loop.comm.rank
    (FOLDER / f"go-{rank}").read_text()
    wall, cpu = time.perf_counter(), time.process_time()
    answer = plain_round(loop, *arguments)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    (FOLDER / f"done-{rank}").write_text(f"{wall} {cpu}")
    return answer


if __name__ == "__main__":
    FederatedFabricLoop.round = paced_round  # type: ignore[method-assign]
    sys.exit(fit.run(sys.argv[2:]))
