"""Choosing the clients to write: the trained ones, and those in mostly outdated files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from pfl_lightning.checkpoint.files import PART_BYTES, PartFile

MOST_FILES = 64


def clients_to_write(
    files: Sequence[PartFile], clients: Sequence[int], changed: Set[int], most_files: int = MOST_FILES
) -> set[int]:
    """The clients whose states go into new files. All others stay in the files they are in.

    A file is given up when less than half of it is current, which keeps disk use below twice the states. When there are
    very many small files, the smallest are merged. In both cases a state is rewritten a few times at most.

    Args:
        files: the files of the slot's last checkpoint.
        clients: for each client the index of the file with its state. -1 if there is none.
        changed: the clients that were trained since that checkpoint.
        most_files: number of small files beyond which the smallest are merged.
    """
    current = Counter(file for client, file in enumerate(clients) if file >= 0 and client not in changed)
    given_up = {file for file, count in current.items() if 2 * count < files[file].clients}
    small = (file for file in current.keys() - given_up if 2 * files[file].size < PART_BYTES)
    rest = sorted(small, key=lambda file: (current[file], file))
    if len(rest) > most_files:
        given_up.update(rest[: len(rest) - most_files // 2])
    return set(changed) | {client for client, file in enumerate(clients) if file in given_up}


def place(
    files: Sequence[PartFile], clients: Sequence[int], server: PartFile, written: Sequence[tuple[PartFile, Set[int]]]
) -> tuple[list[PartFile], list[int]]:
    """The files of the new checkpoint, the server's first, and for each client the index of the file with its state.

    Args:
        files: the files of the slot's last checkpoint.
        clients: for each client the index of its file among them.
        server: the new file of the server.
        written: the new files of client states, each with the clients in it.
    """
    holder = {client: part for part, inside in written for client in inside}
    parts = [holder.get(client) or (files[file] if file >= 0 else None) for client, file in enumerate(clients)]
    kept = [server, *dict.fromkeys(part for part in parts if part is not None)]
    index = {part.name: i for i, part in enumerate(kept)}
    return kept, [-1 if part is None else index[part.name] for part in parts]
