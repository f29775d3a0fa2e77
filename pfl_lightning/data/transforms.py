"""The option `transforms`: random changes to the images of training batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pfl_lightning.data.batched_transforms import batched_version
from pfl_lightning.data.sample_random import SampleRandom, preserved_random, seed_all
from pfl_lightning.foundation.errors import ConfigError

NORMALIZE = "normalize"
TORCHVISION = "torchvision.transforms.v2"
TransformOption: TypeAlias = str | dict[str, Any] | Callable[[Tensor], Tensor]


class Transforms:
    """A chain of transforms for training images, with the place in it where images are normalised.

    An entry is a class of torchvision.transforms.v2 by name (`RandomHorizontalFlip`), with its options
    (`{RandomCrop: {size: 32, padding: 4}}`), a class of your own (`{class_path: my_module.Blur, init_args: {…}}`), an
    object, or the word `normalize`. Without that word, images are normalised at the end.

    Args:
        options: the entries, in the order in which they are applied.
    """

    def __init__(self, options: Sequence[TransformOption]) -> None:
        places = [place for place, option in enumerate(options) if option == NORMALIZE]
        if len(places) > 1:
            raise ConfigError(f"transforms: {NORMALIZE} is there {len(places)} times; use it once")
        self._steps = [_Step(option, place) for place, option in enumerate(options) if option != NORMALIZE]
        self._middle = places[0] if places else len(self._steps)

    def before(self, images: Tensor, numbers: SampleRandom) -> Tensor:
        """Apply the entries before normalisation to bytes. # uint8 [B, H, W, C]"""
        for step in self._steps[: self._middle]:
            images = step(images, numbers)
        return images

    def after(self, images: Tensor, numbers: SampleRandom) -> Tensor:
        """Apply the entries after normalisation. # float32 [B, H, W, C]"""
        for step in self._steps[self._middle :]:
            images = step(images, numbers)
        return images

    def check(self, image: Tensor) -> None:
        """Try every entry on one image. Raises a `ConfigError` if type or shape change. # uint8 [1, H, W, C]"""
        numbers = SampleRandom(0, torch.zeros(1, dtype=torch.int64).numpy())
        for place, step in enumerate(self._steps):
            given = image if place < self._middle else image.float()
            try:
                result = step(given, numbers)
            except Exception as error:  # a stranger's code may raise anything
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ConfigError(f"transforms: {step.name} failed on an image of this data set: {reason}") from error
            if result.dtype != given.dtype:
                raise ConfigError(
                    f"transforms: {step.name} turns {_type(given)} into {_type(result)}; leave it out, since "
                    "data.normalize scales the images"
                )
        middle = self.before(image, numbers)
        for result in (middle, self.after(middle.float(), numbers)):
            if result.shape != image.shape:
                raise ConfigError(
                    f"transforms: they turn images {_size(image)} into {_size(result)}; training and test images must "
                    "have the same shape"
                )


class _Step:
    """One transform, applied to every image of a batch with random numbers of its own."""

    def __init__(self, option: TransformOption, position: int) -> None:
        self._transform = _resolve(option)
        self.name = type(self._transform).__name__
        self._batched = batched_version(self._transform)
        self._position = position

    def __call__(self, images: Tensor, numbers: SampleRandom) -> Tensor:
        if self._batched:
            return self._batched(images, numbers.uniform(self._position, 2))
        changed = []
        with preserved_random(images.device):
            for image, seed in zip(images, numbers.seeds(self._position), strict=True):
                seed_all(seed, images.device)
                changed.append(self._transform(image.permute(2, 0, 1)))
        return torch.stack(changed).permute(0, 2, 3, 1).contiguous()


def _resolve(option: TransformOption) -> Callable[[Tensor], Tensor]:
    if not isinstance(option, str | dict):
        return option
    path, arguments = _path_and_arguments(option)
    kind = _find(path)
    try:
        made: Callable[[Tensor], Tensor] = kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"transforms: {kind.__name__} cannot be made: {' '.join(str(error).split())}") from error
    return made


def _path_and_arguments(option: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(option, dict) and "class_path" in option and set(option) <= {"class_path", "init_args"}:
        return option["class_path"], option.get("init_args") or {}
    named = {option: None} if isinstance(option, str) else option
    name, arguments = next(iter(named.items()), ("", None))
    # classes from other modules are named by class_path only, as everywhere else in a config
    if len(named) != 1 or not isinstance(arguments, dict | None) or not str(name).isidentifier():
        raise ConfigError(f"transforms: {option!r} is not allowed; use Name, {{Name: {{option: value}}}} or class_path")
    return f"{TORCHVISION}.{name}", arguments or {}


def _find(path: str) -> type:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"transforms: {path} cannot be imported: {error}") from error
    if not inspect.isclass(found):
        raise ConfigError(f"transforms: there is no class {name} in {module}")
    return found


def _size(images: Tensor) -> str:
    return "x".join(map(str, images.shape[1:]))


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
