"""Initial weights from a file, or from torchvision's collection (`task.weights`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pfl_lightning.foundation.errors import ConfigError

KEY = "task.weights"


def load_weights(net: nn.Module, weights: str, head: str | None, model: str = "") -> None:
    """Load initial weights into a net.

    All names must be those of the net. The head keeps its random start if the number of its outputs differs.

    Args:
        net: the net.
        weights: a file (.safetensors, or torch's format), or a name such as IMAGENET1K_V1 or DEFAULT.
        head: the path of the head inside the net.
        model: the name of the torchvision function that made the net.
    """
    state = _read(Path(weights)) if Path(weights).is_file() else _download(weights, model)
    own = net.state_dict()
    extra, missing = sorted(state.keys() - own.keys()), sorted(own.keys() - state.keys())
    for names, problem in ((extra, "has {0}, which the net has not"), (missing, "has no {0}")):
        if names:
            raise ConfigError(f"{KEY}: {weights} does not fit the net: it {problem.format(names[0])}")
    for name, tensor in state.items():
        if tensor.shape == own[name].shape:
            continue
        if head is None or not f"{name}.".startswith(f"{head}."):
            raise ConfigError(
                f"{KEY}: {weights} does not fit the net: {name} is {list(tensor.shape)}, not {list(own[name].shape)}"
            )
        state[name] = own[name]
    net.load_state_dict(state)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles of other programs, which are refused below
            content: Any = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, map_location="cpu", weights_only=True)
            )
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{KEY}: cannot read {path}: {reason}") from error
    except Exception as error:  # a pickle with anything but tensors
        raise ConfigError(f"{KEY}: {path} holds more than tensors; save a state_dict") from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]  # a checkpoint of Lightning
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ConfigError(f"{KEY}: {path} is not a state_dict; save net.state_dict()")
    return dict(content)


def _download(name: str, model: str) -> dict[str, Tensor]:
    from torchvision import models  # slow to import

    if model not in models.list_models():
        raise ConfigError(f"{KEY}: no file {name}; give a state_dict (.safetensors or torch)")
    known = models.get_model_weights(model)
    if name not in known.__members__:
        raise ConfigError(f"{KEY}: no file {name}; use a file or {' | '.join(known.__members__)}")
    try:
        state: dict[str, Tensor] = known[name].get_state_dict(progress=False, check_hash=True)
    except OSError as error:
        raise ConfigError(f"{KEY}: {model} {name} cannot be downloaded ({error}); give a file instead") from error
    return state
