from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
