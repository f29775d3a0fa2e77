"""JSON files that carry their own checksum and format number: the manifests and the marker of a run directory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pfl_lightning import __version__
from pfl_lightning.foundation.atomic_files import write_text

FORMAT = 2
"""Number of the format of run directories. It grows with every change that older or newer versions cannot read."""


class Unusable(Exception):
    """A file that cannot be used. The message says why."""


class WrongFormat(Unusable):
    """An intact file of a version with another format."""


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write `content` with format, version and checksum. Raises an `OSError`."""
    content = {"format": FORMAT, "version": __version__, **content}
    # one line per key: json's own indentation gives every client a line, which takes ten times as long
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    write_text(path, f'{{\n "sha256": "{digest(content)}",\n "content": {{\n{lines}\n }}\n}}\n')


def read_sealed(path: Path) -> dict[str, Any]:
    """Read and verify a file of `write_sealed`. Raises `Unusable`."""
    try:
        whole = json.loads(path.read_bytes())
        content = whole["content"] if "content" in whole else whole["checkpoint"]  # the name in format 1
        intact = whole["sha256"] == digest(content)
    except OSError as error:
        raise Unusable(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unusable(f"{path.name} is damaged") from error
    if not intact:
        raise Unusable(f"{path.name} is damaged: its checksum differs")
    if not isinstance(content, dict) or "version" not in content:
        raise Unusable(f"{path.name} was not written by pfl_lightning")
    if content.get("format") != FORMAT:
        raise WrongFormat(
            f"it was written by pfl_lightning {content['version']} in format {content.get('format', 'unknown')}, and "
            f"this is {__version__}, which reads format {FORMAT} only; finish the run with {content['version']}"
        )
    return content


def digest(content: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
