"""run.json: the mark of a run directory. It is the first file of a run, and directories without it are not ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pfl_lightning.checkpoint.sealed import Unusable, read_sealed, write_sealed

MARKER_NAME = "run.json"


@dataclass(frozen=True)
class Marker:
    """The facts in a run directory's own file."""

    config: str
    """The resolved config with which the run was started or last resumed, YAML."""
    has_checkpoint: bool = False
    """Whether the run has completed a checkpoint. If there is none now, somebody has removed them."""
    code: tuple[str, ...] = ()
    """Folders in which the user's own classes were found."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Each own class and the file of initial weights, with the digest of its files when the run was started."""

    def write(self, run_dir: Path) -> None:
        """Write run.json. Raises an `OSError`."""
        write_sealed(run_dir / MARKER_NAME, asdict(self))


def read_marker(run_dir: Path) -> Marker | None:
    """Read run.json. None if there is none. Raises `Unusable`."""
    path = run_dir / MARKER_NAME
    if not path.is_file():
        return None
    content = read_sealed(path)
    if not isinstance(content.get("config"), str) or not isinstance(content.get("has_checkpoint"), bool):
        raise Unusable(f"{MARKER_NAME} was not written by pfl_lightning")
    sources = content.get("sources")
    known = {str(name): str(digest) for name, digest in sources.items()} if isinstance(sources, dict) else {}
    return Marker(content["config"], content["has_checkpoint"], tuple(map(str, content.get("code", ()))), known)


def note_checkpoint(run_dir: Path) -> None:
    """Note in run.json, if there is one, that a checkpoint is complete. A failure is repaired by the next call."""
    with suppress(OSError, Unusable):
        marker = read_marker(run_dir)
        if marker is not None and not marker.has_checkpoint:
            replace(marker, has_checkpoint=True).write(run_dir)
