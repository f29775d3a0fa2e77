"""Which clients are written again: those that changed, and those whose files are mostly out of date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from pfl_lightning.checkpoint.files import PART_BYTES, PartFile

MOST_FILES = 64


def clients_to_write(
    files: Sequence[PartFile], clients: Sequence[int], changed: Set[int], most_files: int = MOST_FILES
) -> set[int]:
    """The clients whose states go into a new checkpoint's files; all others stay where they are.

    A file of which less than half is still current is given up, so that disk use stays below twice the states, and
    when there are very many small files the smallest are joined. Either way a state is rewritten a few times at most.

    Args:
        files: the files of the last checkpoint.
        clients: per client the file that holds its state, -1 for none.
        changed: the clients that were trained since.
        most_files: join small files beyond so many.
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
    """The files of the new checkpoint (the server's first) and per client the one that holds its state.

    Args:
        files: the files of the last checkpoint.
        clients: per client its file among them.
        server: the new file of the server.
        written: the new files of clients, and who is in each.
    """
    holder = {client: part for part, inside in written for client in inside}
    parts = [holder.get(client) or (files[file] if file >= 0 else None) for client, file in enumerate(clients)]
    kept = [server, *dict.fromkeys(part for part in parts if part is not None)]
    index = {part.name: i for i, part in enumerate(kept)}
    return kept, [-1 if part is None else index[part.name] for part in parts]
