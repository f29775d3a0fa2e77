"""Writing a model: safetensors, card, and ONNX."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from pfl_lightning.export.card import Card, card_text, make_card
from pfl_lightning.export.onnx_file import write_onnx
from pfl_lightning.export.predictor import Predictor
from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.foundation.atomic_files import make_folder, write_bytes, write_text
from pfl_lightning.foundation.errors import RunError


def write_model(
    run: SavedRun, predictor: Predictor, about: Card, samples: Tensor | None, folder: Path, name: str
) -> list[Path]:
    """Write `name`.safetensors, `name`.json and `name`.md, and `name`.onnx if there are samples to check it on.

    Returns:
        The files.
    """
    state = plain_state(predictor.model)
    _require_finite(state, about)
    card = make_card(run, predictor, about)
    try:
        make_folder(folder)
        made = []
        if samples is not None:
            made.append(folder / f"{name}.onnx")
            card["onnx_difference"] = write_onnx(predictor, samples, made[0])
            card["sha256"]["onnx"] = hashlib.sha256(made[0].read_bytes()).hexdigest()
        content = save(state, {"method": card["method"], "model": card["model"]})
        card["sha256"]["safetensors"] = hashlib.sha256(content).hexdigest()
        path = folder / f"{name}.safetensors"
        write_bytes(path, content)
        write_text(path.with_suffix(".json"), json.dumps(card, indent=2) + "\n")
        write_text(path.with_suffix(".md"), card_text(card, name, samples is not None))
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from error
    return [path, path.with_suffix(".json"), path.with_suffix(".md"), *made]


def _require_finite(state: Mapping[str, Tensor], about: Card) -> None:
    """Refuse a model that has diverged. Its results would be without meaning: the class of NaN is 0."""
    broken = [key for key, tensor in state.items() if tensor.is_floating_point() and not bool(tensor.isfinite().all())]
    broken += [key for key, value in about["results"].items() if not math.isfinite(value)]
    if broken:
        raise RunError(
            f"the {about['model']} has diverged: {broken[0]} is NaN or infinite; it was not written; a smaller "
            "learning rate in the run usually helps"
        )


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict with tensors in torch's default memory order."""
    order = torch.contiguous_format
    return {name: tensor.detach().clone(memory_format=order) for name, tensor in model.state_dict().items()}
