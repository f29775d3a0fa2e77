from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pfl_lightning.foundation import allocator
from pfl_lightning.foundation.allocator import MMAP_THRESHOLD, TRIM_THRESHOLD

BLOCKS = """
import ctypes, resource, sys
from pfl_lightning.foundation.allocator import reuse_memory

if sys.argv[1] == "reuse":
    assert reuse_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def use_a_block():
    block = ctypes.c_void_p(libc.malloc(64 << 20))
    libc.memset(block, 1, 64 << 20)
    libc.free(block)

use_a_block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use_a_block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_without_asking_the_system():
    """Each new page is a page fault, and 64 MiB have 16 384 pages. In other processes, because it cannot be undone."""
    usual, reused = (
        int(subprocess.run([sys.executable, "-c", BLOCKS, word], check=True, capture_output=True).stdout)
        for word in ("usual", "reuse")
    )
    assert usual > 1000, "otherwise there is nothing to save"
    assert reused < 100


@pytest.mark.parametrize(
    ("accepts", "done", "calls"),
    [
        (1 << 30, True, [(MMAP_THRESHOLD, 1 << 30), (TRIM_THRESHOLD, 1 << 30)]),
        (1 << 25, True, [(MMAP_THRESHOLD, 1 << 30), (MMAP_THRESHOLD, 1 << 25), (TRIM_THRESHOLD, 1 << 30)]),
        (0, False, [(MMAP_THRESHOLD, 1 << 30), (MMAP_THRESHOLD, 1 << 25)]),
    ],
)
def test_trimming_is_left_alone_unless_blocks_are_kept(monkeypatch, accepts, done, calls):
    """Old versions of glibc refuse 1 GiB. A trim threshold alone would make every block slow there."""
    seen: list[tuple[int, int]] = []

    def mallopt(option: int, value: int) -> int:
        seen.append((option, value))
        return int(option == TRIM_THRESHOLD or value <= accepts)

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert allocator.reuse_memory() is done
    assert seen == calls


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert allocator.reuse_memory() is False


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_the_tool_has_a_row_for_each_setting():
    """glibc alone keeps a block of one size as well, so only the first test of this file shows a difference."""
    tool = Path(__file__).parents[2] / "tools" / "check" / "allocator.py"
    output = subprocess.run([sys.executable, tool], check=True, capture_output=True, text=True).stdout
    rows = [[cell.strip() for cell in line.split("|")] for line in output.splitlines()[2:]]
    assert [row[2] for row in rows] == ["glibc alone", "settings of 0.1", "`reuse_memory`"]
    assert float(rows[-1][4].replace(",", "")) < 1, "page faults of each block"
