"""Arrays of any type as inputs of a net."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.foundation.errors import ConfigError


def as_inputs(x: NDArray[Any], place: object) -> NDArray[np.generic]:
    """Inputs in one of the three types of a prepared file.

    Bytes [n, H, W] or [n, H, W, C] with 1 or 3 channels are images. Other whole numbers are tokens, except for bytes
    and truth values, which become numbers like all floats.
    """
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[..., None]
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[-1] in (1, 3):
        return x
    if x.ndim < 2:
        raise ConfigError(f"data: {place}: inputs have the shape {x.shape}; each sample needs at least one axis")
    if x.dtype.kind in "iu" and x.dtype != np.uint8:
        return x.astype(np.int64)
    if x.dtype.kind in "fbu":
        return x.astype(np.float32)
    raise ConfigError(f"data: {place}: inputs are {x.dtype}; use numbers")


def as_targets(y: NDArray[Any], place: object) -> NDArray[np.generic]:
    """Targets in one of the types that labels may have: whole numbers, text or floats."""
    if y.dtype.kind in "iub":
        return y.astype(np.int64)
    if y.dtype.kind == "f":
        return y.astype(np.float32)
    if y.dtype.kind == "U":
        return y
    raise ConfigError(f"data: {place}: labels are {y.dtype}; use whole numbers, text or floats")
