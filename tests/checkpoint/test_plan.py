"""Which clients are written again, by hand and over a long run."""

from __future__ import annotations

import random

from pfl_lightning.checkpoint.files import PartFile
from pfl_lightning.checkpoint.plan import clients_to_write, place


def part(name: str, clients: int) -> PartFile:
    return PartFile(name, "", 0, clients)


def test_only_what_changed_is_written():
    files = [part("server", 0), part("a", 4)]
    assert clients_to_write(files, [1, 1, 1, 1, -1], {0, 4}) == {0, 4}


def test_a_file_of_which_less_than_half_is_current_is_given_up():
    files = [part("server", 0), part("a", 4), part("b", 2)]
    clients = [1, 1, 1, 1, 2, 2]
    assert clients_to_write(files, clients, {0, 1}) == {0, 1}, "half is enough"
    assert clients_to_write(files, clients, {0, 1, 2}) == {0, 1, 2, 3}
    assert clients_to_write(files, [2, 2, 2, 1, 2, 2], {4}) == {3, 4}, "one of four is left in a"


def test_very_many_files_are_joined_the_smallest_first():
    files = [part("server", 0), *(part(str(i), 1) for i in range(6)), part("large", 4)]
    clients = [*range(1, 7), 7, 7, 7, 7, -1]
    assert clients_to_write(files, clients, {10}, most_files=7) == {10}
    assert clients_to_write(files, clients, {10}, most_files=6) == {0, 1, 2, 3, 10}, "three files of seven stay"


def test_places_after_a_checkpoint():
    old = [part("server1", 0), part("a", 2), part("b", 1)]
    new = part("c", 2)
    files, clients = place(old, [1, 1, 2, -1], part("server2", 0), [(new, {2, 3})])
    assert [file.name for file in files] == ["server2", "a", "c"], "nobody is left in b"
    assert clients == [1, 1, 2, 2]


def test_ten_thousand_clients_are_not_rewritten_each_time_and_the_disk_is_bounded():
    """Ten clients change between two checkpoints: what is written stays near ten, what is kept below twice them all."""
    rng = random.Random(0)
    files: list[PartFile] = []
    clients = [-1] * 10_000
    written = 0
    for number in range(300):
        changed = set(rng.sample(range(10_000), 10))
        todo = clients_to_write(files, clients, changed)
        written += len(todo)
        files, clients = place(files, clients, part(f"s{number}", 0), [(part(f"{number}", len(todo)), todo)])
        held = sum(client >= 0 for client in clients)
        assert sum(file.clients for file in files) <= 2 * held
        assert len(files) <= 66
    assert written / 300 < 60
