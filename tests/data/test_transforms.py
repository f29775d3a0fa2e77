"""Random changes to training images: right pixels, one draw per sample, the same on any rank."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from pfl_lightning.data import DataSpec, Fashion10k, Samples
from pfl_lightning.data.batched_transforms import batched_version
from pfl_lightning.data.sample_random import SampleRandom
from pfl_lightning.foundation.errors import ConfigError

CPU = torch.device("cpu")
CROP = {"RandomCrop": {"size": 8, "padding": 2}}


class Colours(Fashion10k):
    """Forty random colour images of 8x8."""

    spec = DataSpec((3, 8, 8), 2)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)

    def load(self) -> Samples:
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(1, 256, (40, 8, 8, 3), dtype=torch.uint8, generator=generator)
        return Samples(x, torch.arange(40) % 2, 0)


class GlobalNoise(nn.Module):
    """Draws from all three global random states."""

    def forward(self, image: Tensor) -> Tensor:
        return image + int(10 * random.random()) + np.random.randint(10) + torch.randint(10, (1,)).to(image.dtype)


def make(transforms: list[Any] | None, **options: Any) -> Colours:
    data = Colours(num_clients=2, transforms=transforms, **options)
    data.setup(0)
    return data


def augmented(data: Colours, indices: list[int], seed: int | None = 5) -> Tensor:
    return data.batch(torch.tensor(indices), CPU, seed)[0]


def normal(images: Tensor) -> Tensor:
    """Bytes [B, C, H, W], normalised by hand."""
    mean, std = torch.tensor(Colours.mean).view(3, 1, 1), torch.tensor(Colours.std).view(3, 1, 1)
    return ((images.double() / 255 - mean) / std).float()


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("size", [(8, 8), (7, 10)])
def test_rotation_gives_torchvisions_pixels(mode: str, size: tuple[int, int]) -> None:
    interpolation = v2.InterpolationMode(mode)
    rotate = batched_version(v2.RandomRotation(25, interpolation=interpolation))
    assert rotate
    x = torch.randint(0, 256, (30, *size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    u = np.random.default_rng(0).random((30, 2))
    images = zip(x.permute(0, 3, 1, 2), -25 + 50 * u[:, 0], strict=True)
    expected = torch.stack([functional.rotate(image, float(a), interpolation) for image, a in images])
    difference = (rotate(x, u).permute(0, 3, 1, 2).int() - expected.int()).abs()
    assert difference.max() <= (mode == "bilinear")  # rounding of a half
    assert (difference > 0).float().mean() < 0.001


def test_crop_and_flip_give_torchvisions_pixels() -> None:
    crop, flip = batched_version(v2.RandomCrop((5, 6), padding=(1, 2, 3, 4), fill=7)), v2.RandomHorizontalFlip(0.5)
    upside_down, x = v2.RandomVerticalFlip(0.5), torch.randint(0, 256, (20, 8, 9, 3), dtype=torch.uint8)
    u = np.random.default_rng(0).random((20, 2))
    images = functional.pad(x.permute(0, 3, 1, 2), [1, 2, 3, 4], fill=7)
    assert crop
    corners = [(int(v * (14 - 5 + 1)), int(w * (13 - 6 + 1))) for v, w in u]
    expected = [functional.crop(image, *corner, 5, 6) for image, corner in zip(images, corners, strict=True)]
    assert crop(x, u).permute(0, 3, 1, 2).equal(torch.stack(expected))
    for transform, axis in ((flip, 2), (upside_down, 1)):
        batched = batched_version(transform)
        assert batched
        for image, result, v in zip(x, batched(x, u), u[:, 0], strict=True):
            assert result.equal(image.flip(axis - 1) if v < 0.5 else image)


@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomCrop(8, padding=2, padding_mode="reflect"),
        v2.RandomCrop(8, padding=2, pad_if_needed=True),
        v2.RandomRotation(9, fill=3),
        v2.RandomRotation(9, expand=True),
        v2.RandomRotation(9, center=[0, 0]),
        v2.ColorJitter(0.5),
        v2.RandomRotation(9, v2.InterpolationMode.BILINEAR, center=[1, 1]),
    ],
)
def test_other_options_are_left_to_torchvision(transform: nn.Module) -> None:
    assert batched_version(transform) is None


def test_no_seed_or_no_transforms_changes_nothing() -> None:
    plain, data = make(None), make(["RandomHorizontalFlip", CROP])
    every = list(range(40))
    assert augmented(data, every, None).equal(augmented(plain, every, None))
    assert augmented(plain, every, 5).equal(augmented(plain, every, None))
    assert not augmented(data, every, 5).equal(augmented(plain, every, None))
    assert augmented(data, every, 5).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "transforms",
    [
        ["RandomHorizontalFlip", CROP, {"RandomRotation": {"degrees": 30}}],
        [{"ColorJitter": {"brightness": 0.5}}],
        [GlobalNoise()],
        [{"class_path": "tests.data.test_transforms.GlobalNoise"}, "normalize", CROP],
    ],
)
def test_a_sample_is_changed_the_same_way_in_any_batch(transforms: list[Any]) -> None:
    data = make(transforms)
    whole = augmented(data, list(range(40)))
    torch.manual_seed(99), random.seed(99), np.random.seed(99)  # nothing outside may matter
    assert augmented(data, [31, 7, 8]).equal(whole[[31, 7, 8]])
    assert not augmented(data, list(range(40)), 6).equal(whole)


def test_samples_of_a_batch_are_changed_differently() -> None:
    for transforms in (["RandomHorizontalFlip"], [CROP], [{"RandomRotation": {"degrees": 90}}], [GlobalNoise()]):
        data = make(transforms)
        data.samples = data.samples._replace(x=data.samples.x[:1].expand(40, -1, -1, -1).contiguous())
        results = augmented(data, list(range(40)))
        assert len(results.flatten(1).unique(dim=0)) >= 2


def test_global_random_states_are_preserved() -> None:
    data = make([GlobalNoise(), {"ColorJitter": {"hue": 0.1}}])
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    augmented(data, [1, 2])
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_normalisation_stands_where_it_was_put() -> None:
    black = normal(torch.zeros(1, 3, 1, 1)).flatten().tolist()
    for place, corner in ((0, [0.0, 0.0, 0.0]), (1, black)):  # padding after normalisation is 0, before it is black
        transforms: list[Any] = [{"RandomCrop": {"size": 8, "padding": 8}}]
        transforms.insert(place, "normalize")
        images = augmented(make(transforms), list(range(40)))
        padded = [image for image in images if image[0, 0, 0] != image[0, 4, 4] and image[:, 0].std() < 10]
        corners = {tuple(round(v, 4) for v in image[:, 0, 0].tolist()) for image in padded}
        assert tuple(round(v, 4) for v in corner) in corners
    everything = make(["RandomHorizontalFlip"])
    raw = everything.samples.x.permute(0, 3, 1, 2)
    for image, one in zip(augmented(everything, list(range(40))), raw, strict=True):
        same, mirrored = normal(one), normal(one.flip(-1))
        assert torch.allclose(image, same, atol=1e-5) or torch.allclose(image, mirrored, atol=1e-5)


def test_numbers_of_samples_are_uniform_and_independent() -> None:
    numbers = SampleRandom(3, np.arange(20_000))
    u, v = numbers.uniform(0, 2), numbers.uniform(1, 2)
    columns = np.concatenate([u, v], axis=1)
    assert columns.min() >= 0
    assert columns.max() < 1
    assert np.abs(columns.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(columns.T) - np.eye(4)).max() < 0.03
    assert np.abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.03
    assert np.abs(np.corrcoef(u[:, 0], SampleRandom(4, np.arange(20_000)).uniform(0, 1)[:, 0])[0, 1]) < 0.03
    assert len(set(numbers.seeds(0)) | set(numbers.seeds(1))) == 40_000


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (["Nonsense"], r"^transforms: there is no class Nonsense in torchvision.transforms.v2$"),
        (["tests.data.test_transforms.GlobalNoise"], r"^transforms: .* is not allowed; use Name, .* or class_path"),
        ([{"class_path": "no_such_module.Blur"}], r"^transforms: no_such_module.Blur cannot be imported: "),
        (["RandomCrop"], r"^transforms: RandomCrop cannot be made: "),
        ([{"RandomCrop": {"size": 8}, "Other": {}}], r"^transforms: .* is not allowed; use Name"),
        ([{"RandomCrop": 8}], r"^transforms: .* is not allowed; use Name"),
        (["normalize", "normalize"], r"^transforms: normalize is there 2 times"),
        ([{"RandomCrop": {"size": 20}}], r"^transforms: RandomCrop failed on an image .* the crop 20x20 is larger"),
        ([{"RandomCrop": {"size": 6}}], r"^transforms: they turn images 8x8x3 into 6x6x3"),
        ([{"CenterCrop": {"size": 4}}, "normalize", {"Resize": {"size": 8}}], r"^transforms: they turn images"),
        ([{"ToDtype": {"dtype": torch.float32, "scale": True}}], r"^transforms: ToDtype turns uint8 into float32"),
        ([{"MixUp": {"num_classes": 2}}], r"^transforms: MixUp failed on an image of this data set: "),
    ],
)
def test_bad_transforms_are_one_line(transforms: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make(transforms)
    assert "\n" not in str(caught.value)


def test_own_mean_and_deviation() -> None:
    raw = make(None).samples.x[[3]].permute(0, 3, 1, 2).double() / 255
    for normalize, expected in (
        ({"mean": 0.5, "std": 0.25}, (raw - 0.5) / 0.25),
        ({"mean": [0.0, 0.5, 1.0], "std": 2.0}, (raw - torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1)) / 2),
    ):
        torch.testing.assert_close(augmented(make(None, normalize=normalize), [3]), expected.float())


@pytest.mark.parametrize(
    ("normalize", "message"),
    [
        ({"mean": 0.5}, "normalize: "),
        ({"mean": 0.5, "std": 0.0}, "normalize.std: 0.0 is not allowed"),
        ({"mean": float("nan"), "std": 1.0}, "normalize.mean: nan is not allowed"),
        ({"mean": [0.5, 0.5], "std": 1.0}, "normalize.mean: 2 numbers are given; use one number, or 3 in a list"),
    ],
)
def test_bad_mean_or_deviation(normalize: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        make(None, normalize=normalize)


def test_transforms_from_yaml_come_back_from_the_stored_config() -> None:
    from jsonargparse import ArgumentParser

    from pfl_lightning.data import FederatedData

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--data", type=FederatedData)
    config = parser.parse_string(
        "data: {class_path: Fashion10k, init_args: {normalize: {mean: 0.5, std: [0.25]}, transforms: ["
        "{RandomCrop: {size: 28, padding: 4}}, RandomHorizontalFlip, normalize, {RandomRotation: {degrees: 15}}, "
        "{class_path: tests.data.test_transforms.GlobalNoise}]}}"
    )
    again = parser.parse_string(parser.dump(config))
    data = parser.instantiate(again).data
    assert data.transforms == parser.instantiate(config).data.transforms
    assert data.transforms[3] == {"RandomRotation": {"degrees": 15}}
    data.setup(0)
    assert data.batch(torch.tensor([1, 2]), CPU, 3)[0].shape == (2, 1, 28, 28)
