"""What a run notes about the code of the user's own classes, and about its initial weights."""

from __future__ import annotations

from pathlib import Path

import yaml

from pfl_lightning.checkpoint.marker import read_marker
from pfl_lightning.checkpoint.sealed import Unusable
from pfl_lightning.cli.trust import outside_names
from pfl_lightning.foundation.own_sources import source_digest


def own_digests(config_text: str, resumed: Path | None = None) -> dict[str, str]:
    """The user's own classes and the file of initial weights in a config, each with the digest of its files.

    Args:
        config_text: the resolved config of a run, YAML. Its classes have been imported.
        resumed: the directory of a run that goes on. Its first digests stay: a part of it was made by that code.
    """
    config = yaml.safe_load(config_text)
    weights = config.get("task", {}).get("init_args", {}).get("weights")
    names = dict.fromkeys([*outside_names(config), *([weights] if isinstance(weights, str) else [])])
    found = {name: digest for name in names if (digest := source_digest(name)) is not None}
    try:
        marker = read_marker(resumed) if resumed else None
    except Unusable:
        marker = None
    return {**found, **(marker.sources if marker else {})}
