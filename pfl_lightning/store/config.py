"""How much memory client states may take, and where the rest goes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pfl_lightning.foundation.errors import require

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{kind}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for kind, base in (("B", 1000), ("IB", 1024))
}


@dataclass(frozen=True)
class StoreConfig:
    """Where client states are kept between visits. No result depends on it."""

    memory: int | str = "2GB"
    """Memory of each rank for client states: bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB,
    TiB (of 1024). Further states go to disk. 0 puts all of them there."""
    folder: Path | None = None
    """An existing directory for states on disk. Each rank has one unnamed file there, which disappears when the rank
    ends in any way. Default: the run directory. On a cluster, a disk of the node is faster."""

    def __post_init__(self) -> None:
        """Check the settings."""
        size = parse_bytes(self.memory)
        require(size is not None, "memory", self.memory, "bytes, or a number with a unit such as 512MB, 2GB or 1.5GiB")
        require(
            self.folder is None or Path(self.folder).is_dir(), "folder", str(self.folder), "a directory that exists"
        )

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes."""
        size = parse_bytes(self.memory)
        assert size is not None, "checked when it was made"
        return size


def parse_bytes(text: int | str) -> int | None:
    """`"1.5 GiB"` to bytes. None for unreadable text."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([a-z]*)", str(text).strip(), re.IGNORECASE)
    if match is None or match[2].upper() not in UNITS:
        return None
    return int(float(match[1]) * UNITS[match[2].upper()])
