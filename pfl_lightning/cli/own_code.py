"""Where a user's own classes are found: beside the config, and in the working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pfl_lightning.cli.extends import config_paths, options


def own_folders(argv: list[str], shared: bool = False) -> list[str]:
    """The folders of all config files on a command line and of the files they extend, then the working directory.

    Args:
        argv: the words of the command line.
        shared: whether the working directory may be somebody else's. It is left out then: a file `tensorboard.py`
            beside a stranger's checkpoints would be imported in place of the package.
    """
    named = [Path(text) for _, text in options(argv) if text and "\n" not in text]
    found = [str(path.resolve().parent) for name in named for path in reversed(config_paths(name))]
    return list(dict.fromkeys([*found, *([] if shared else [os.getcwd()])]))


def add_to_path(folders: Iterable[str]) -> None:
    """Let Python import from these folders, before all others."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
