"""A data set that is larger than the memory that the process may have."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfl_lightning.data import ClientArrays

MEGABYTE = 2**20
ROOM, SET = 16 * MEGABYTE, 40 * MEGABYTE
ROW = 64 * 64 * 3
CPU = torch.device("cpu")


def status(name: str) -> int:
    """A figure of this process in bytes, as the kernel counts it."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def write_set(path: Path, x: Any) -> None:
    np.savez(path, x=x, y=np.arange(len(x)) % 10, client=np.arange(len(x)) % 5)


def read_all(source: Path) -> tuple[float, int]:
    """Prepare a set and read all its samples: their sum, and the bytes of the inputs."""
    data = ClientArrays(source, root=source.parent / "data", normalize="unit")
    data.setup(0)
    total = 0.0
    for client in range(data.num_clients):
        for indices in torch.cat([data.train_indices(client), data.test_indices(client)]).split(16):  # type: ignore[no-untyped-call]
            x, _ = data.batch(indices, CPU)
            total += float(x.double().sum()) * 255
    return total, data.samples.x.nbytes


def prepare_and_read(folder: Path, results: Any) -> None:
    """Prepare and read all samples with little memory; report what happened."""
    torch.set_num_threads(1)
    read_all(folder / "small.npz")  # what libraries allocate once must not count
    # heap and private mappings: the memory that a process has for itself, whatever its address space looks like
    ctypes.CDLL(None).malloc_trim(0)  # memory that the imports have freed must not count as room
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + ROOM, resource.RLIM_INFINITY))
    try:
        np.load(folder / "large.npz")["x"]
        results.put("the whole set fitted into memory: the limit shows nothing")
        return
    except MemoryError:
        pass
    anonymous = status("RssAnon")
    total, size = read_all(folder / "large.npz")
    results.put((total, status("RssAnon") - anonymous, size))


def test_a_set_larger_than_memory_is_prepared_and_read(tmp_path: Path) -> None:
    rows = SET // ROW
    tile = np.random.default_rng(0).integers(0, 256, (64, 64, 64, 3), dtype=np.uint8)
    x = np.resize(tile, (rows, 64, 64, 3))
    write_set(tmp_path / "large.npz", x)
    write_set(tmp_path / "small.npz", tile)
    expected = float(x.sum(dtype=np.int64))
    context = multiprocessing.get_context("spawn")  # a fork inherits memory that earlier tests have freed
    results = context.SimpleQueue()
    process = context.Process(target=prepare_and_read, args=(tmp_path, results))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    total, grown, size = results.get()
    assert size > 2 * ROOM
    assert abs(total - expected) < 1e-3 * expected
    assert grown < ROOM


def test_ranks_share_the_pages(tmp_path: Path) -> None:
    """Two processes that read everything have no private copy of it."""
    rows = 8 * MEGABYTE // ROW
    x = np.zeros((rows, 64, 64, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(rows) % 2, client=np.arange(rows) % 2)
    data = ClientArrays(tmp_path / "a.npz", root=tmp_path / "data")
    data.setup(0)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def read() -> None:
        assert data.samples.x.numpy().sum() == 0
        maps = Path("/proc/self/smaps").read_text()
        entry = maps[maps.index("data/prepared/") :]
        results.put(
            {name: int(re.findall(rf"^{name}:\s+(\d+) kB", entry, re.MULTILINE)[0]) for name in ("Rss", "Anonymous")}
        )

    processes = [context.Process(target=read) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
        figures = results.get()
        assert figures["Rss"] >= 8 * 1024 - 100
        assert figures["Anonymous"] == 0
