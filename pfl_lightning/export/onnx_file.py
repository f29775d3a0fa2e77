"""A model as an ONNX file that takes raw inputs, checked against torch."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from pfl_lightning.foundation.errors import ConfigError, RunError

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""Largest difference between an output of the file and of torch."""
BATCH = 256


def require_onnx() -> None:
    """Refuse to go on without the packages that write and check ONNX files."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"onnx: {', '.join(missing)} missing; install with: pip install 'pfl_lightning[onnx]'")


def write_onnx(model: nn.Module, samples: Tensor, path: Path) -> float:
    """Write an ONNX file for batches of any size, and check it on samples.

    Args:
        model: in evaluation mode, on the CPU.
        samples: raw inputs, at least one.
        path: the file. It is removed if the check fails.

    Returns:
        The largest difference from torch's outputs.

    Raises:
        RunError: torch cannot turn the model into ONNX, or the outputs differ by more than 1e-4.
    """
    example = samples[:2] if len(samples) > 1 else samples.repeat_interleave(2, dim=0)
    try:
        with _silent():
            torch.onnx.export(
                model,
                (example,),
                path,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["inputs"],
                output_names=["outputs"],
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter raises errors of many kinds
        path.unlink(missing_ok=True)
        raise RunError(f"onnx: torch cannot turn this model into ONNX: {_reason(error)}") from error
    difference = largest_difference(model, samples, path)
    if not difference <= TOLERANCE:  # the negated comparison also rejects NaN
        path.unlink()
        raise RunError(f"onnx: outputs differ from torch's by {difference:.1e}, more than {TOLERANCE:.0e}")
    return difference


@torch.no_grad()
def largest_difference(model: nn.Module, samples: Tensor, path: Path) -> float:
    """The largest difference between outputs of the file and of torch, for one sample and for batches."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    differences = []
    for batch in (samples[:1], *torch.split(samples, BATCH)):
        made = torch.from_numpy(session.run(None, {"inputs": batch.numpy()})[0])
        differences.append((made.double() - model(batch).double()).abs().max())
    return float(torch.stack(differences).max())


def _reason(error: BaseException) -> str:
    """The first line of the first error, without colours. The exporter wraps it in advice about itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return plain.partition("\n")[0] or type(error).__name__


@contextmanager
def _silent() -> Iterator[None]:
    """The exporter warns about its own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
