"""The same bits every time on a GPU (`fabric.deterministic`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

WORKSPACE = ":4096:8"
"""The workspace with which cuBLAS adds in a fixed order: eight buffers of 4 MiB."""


def be_deterministic() -> None:
    """Let CUDA give the same bits in every run on the same hardware.

    - cuBLAS gets a fixed workspace. It reads the setting when it is first used.
    - cuDNN uses deterministic algorithms only and does not choose them by timing.
    - Products are computed in full float32, not in TF32, so results stay within rounding of a CPU's.
    - torch uses deterministic versions of its own operations, and warns where there is none.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # filling new tensors costs a pass over each of them
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def deterministic_block() -> Iterator[None]:
    """`be_deterministic` inside the block. Afterwards torch is as before, except for the workspace of cuBLAS."""
    places: list[tuple[Any, str]] = [(torch.backends.cudnn, n) for n in ("benchmark", "deterministic", "allow_tf32")]
    filling = torch.utils.deterministic  # type: ignore[attr-defined]
    places += [(torch.backends.cuda.matmul, "allow_tf32"), (filling, "fill_uninitialized_memory")]
    before = [(owner, name, getattr(owner, name)) for owner, name in places]
    mode = torch.get_deterministic_debug_mode()
    try:
        be_deterministic()
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        torch.set_deterministic_debug_mode(mode)
