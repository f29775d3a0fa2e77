"""All parts, one after the other: `python tools/bench`, with the options of each (`--quick`, `--turns`, `--out`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = (
    "round",
    "two_cores",
    "ranks",
    "personalization",
    "federation_size",
    "world",
    "operations",
    "evaluation",
    "start",
    "checkpoint",
    "own_data",
    "levers",
    "hot_spots",
)


def main() -> None:
    failed = []
    for part in PARTS:
        print(f"\n# {part}", flush=True)
        words = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(f"{part}.py")), *sys.argv[1:]]
        if subprocess.run(words).returncode:
            failed.append(part)
    if failed:
        sys.exit(f"these parts failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
