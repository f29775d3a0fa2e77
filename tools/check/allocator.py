"""What `fabric.reuse_memory` does to a block of 3.2 MB that is taken, filled and freed again and again.

It needs nothing but Python 3.9 and the C library glibc, so it also runs where the package cannot be installed:

    python tools/check/allocator.py
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
from pathlib import Path
from time import perf_counter_ns

SIZE, WARM_UP, TURNS = 3_200_000, 20, 400
ALLOCATOR = Path(__file__).parents[2] / "pfl_lightning" / "foundation" / "allocator.py"


def former_settings(libc: ctypes.CDLL) -> None:
    """The order of calls until version 0.1: the first stops glibc from adapting, even if the second is refused."""
    libc.mallopt(-1, 1 << 30)
    libc.mallopt(-3, 1 << 30)


def measure(libc: ctypes.CDLL) -> str:
    """Microseconds to fill a block, with the middle half in brackets, and the page faults of each."""
    times, before = [], 0
    for turn in range(WARM_UP + TURNS):
        if turn == WARM_UP:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = ctypes.c_void_p(libc.malloc(SIZE))
        start = perf_counter_ns()
        libc.memset(block, 1, SIZE)
        times.append((perf_counter_ns() - start) / 1000)
        libc.free(block)
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / TURNS
    ranked = sorted(times[WARM_UP:])
    low, middle, high = (ranked[TURNS * quarter // 4] for quarter in (1, 2, 3))
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f}) | {faults:,.0f}"


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.gnu_get_libc_version.restype = ctypes.c_char_p
    settings = {
        "glibc alone": lambda: None,
        "settings of 0.1": lambda: former_settings(libc),
        "`reuse_memory`": runpy.run_path(str(ALLOCATOR))["reuse_memory"],
    }
    print("| glibc | settings | microseconds to fill a block | page faults |\n|---|---|---:|---:|", flush=True)
    for name, apply in settings.items():
        if not os.fork():  # settings cannot be taken back
            apply()
            print(f"| {libc.gnu_get_libc_version().decode()} | {name} | {measure(libc)} |", flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
