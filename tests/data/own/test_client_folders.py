"""Image folders: client/class/image and client/train|test/class/image."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pfl_lightning.data import ClientFolders, DataSpec
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.own_files import random_image, write_folders

CPU = torch.device("cpu")
ORIENTATION, TURN_RIGHT = 0x0112, 6


def make(folder: Path, **options: object) -> ClientFolders:
    data = ClientFolders(folder / "photos", root=folder / "data", **options)
    data.setup(0)
    return data


def test_clients_and_classes_are_folders(tmp_path: Path) -> None:
    write_folders(tmp_path / "photos")
    data = make(tmp_path, normalize="unit")
    assert (data.name, data.kind) == ("ClientFolders_photos", "classes")
    assert data.spec == DataSpec((3, 20, 24), 2)
    assert (data.client_names, data.class_names) == (("ann", "bob", "cem"), ("cat", "dog"))
    assert data.train_sizes.tolist() == [6] * 3
    assert data.test_sizes.tolist() == [2] * 3
    for client, name in enumerate(data.client_names):
        mine = torch.cat([data.train_indices(client), data.test_indices(client)])
        x, y = data.batch(mine, CPU)
        found = {
            (int(label), image.mul(255).round().byte().numpy().tobytes()) for image, label in zip(x, y, strict=True)
        }
        files = [(label, path) for label, kind in enumerate(("cat", "dog")) for path in _files(tmp_path, name, kind)]
        assert found == {(label, np.asarray(Image.open(path)).transpose(2, 0, 1).tobytes()) for label, path in files}


def _files(folder: Path, client: str, kind: str) -> list[Path]:
    return list((folder / "photos" / client / kind).iterdir())


def test_photos_are_turned_as_their_camera_says(tmp_path: Path) -> None:
    write_folders(tmp_path / "photos", each=1)
    upright = random_image(np.random.default_rng(1))
    exif = Image.Exif()
    exif[ORIENTATION] = TURN_RIGHT
    for path in (tmp_path / "photos").rglob("*.png"):
        upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    data = make(tmp_path, normalize="unit")
    assert data.spec.shape == (3, *np.asarray(upright).shape[:2])
    assert all(np.array_equal(image, np.asarray(upright)) for image in data.samples.x.numpy())


def test_own_test_folders_are_kept(tmp_path: Path) -> None:
    write_folders(tmp_path / "photos", split=True)
    shutil.rmtree(tmp_path / "photos" / "bob" / "test")
    data = make(tmp_path)
    assert data.train_sizes.tolist() == [8, 8, 8]
    assert data.test_sizes.tolist() == [8, 0, 8]
    assert data.warnings == ("data: 1 of 3 clients, client 1 (bob) first, have no test sample and will not be tested",)
    training = data.samples.x[: data.samples.num_train].double() / 255
    x, _ = data.batch(torch.arange(data.samples.num_train), CPU)
    assert x.mean((0, 2, 3)).abs().max() < 1e-4  # normalised by the training part
    assert torch.allclose(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)
    assert training.shape == (24, 20, 24, 3)


def test_images_of_any_size_get_one(tmp_path: Path) -> None:
    write_folders(tmp_path / "photos")
    random_image(np.random.default_rng(1), 31, 17).save(tmp_path / "photos" / "bob" / "cat" / "odd.jpg")
    with pytest.raises(
        ConfigError, match=r"^data: .*odd.jpg has 31x17 pixels, the first image has 20x24; set data.size"
    ):
        make(tmp_path)
    assert make(tmp_path, size=8).spec.shape == (3, 8, 8)
    assert make(tmp_path, size=(8, 12)).spec.shape == (3, 8, 12)
    assert make(tmp_path, size=8, channels=1).spec.shape == (1, 8, 8)


def test_resizing_keeps_proportions(tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "ann" / "cat"
    folder.mkdir(parents=True)
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 255  # the middle third, which is all that is left
    for number in range(2):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    assert (make(tmp_path, size=10).samples.x == 255).all()


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "photos" / "ann" / "cat"
    folder.mkdir(parents=True)
    for number in range(3):
        random_image(rng, channels=1).save(folder / f"{number}.png")
    assert make(tmp_path).spec.shape == (1, 20, 24)
    random_image(rng).save(folder / "9.png")
    with pytest.raises(
        ConfigError, match=r"9.png cannot be read as an image: it is in colour and the first image is grey"
    ):
        make(tmp_path)
    assert make(tmp_path, channels=3).spec.shape == (3, 20, 24)


def test_numbered_clients_and_classes_are_in_order(tmp_path: Path) -> None:
    for client in ("10", "9"):
        for label in ("10", "2"):
            folder = tmp_path / "photos" / client / label
            folder.mkdir(parents=True)
            for number in range(2):
                random_image(np.random.default_rng(0)).save(folder / f"{number}.PNG")
    data = make(tmp_path)
    assert (data.client_names, data.class_names) == (("9", "10"), ("2", "10"))


@pytest.mark.parametrize("case", ["missing", "file", "no clients", "stray", "empty client", "deep", "mixed", "no test"])
def test_wrong_folders_are_named(tmp_path: Path, case: str) -> None:
    photos = tmp_path / "photos"
    if case not in ("missing", "file", "no clients"):
        write_folders(photos, split=case in ("mixed", "no test"))
    if case == "file":
        photos.write_text("")
    elif case == "no clients":
        photos.mkdir()
    elif case == "stray":
        random_image(np.random.default_rng(0)).save(photos / "ann" / "9.png")
    elif case == "empty client":
        (photos / "dan").mkdir()
    elif case == "deep":
        (photos / "ann" / "cat" / "more").mkdir()
    elif case == "mixed":
        write_folders(tmp_path / "others")
        (tmp_path / "others" / "ann").rename(photos / "dan")
    elif case == "no test":
        for folder in photos.glob("*/test"):
            shutil.rmtree(folder)
    message = {
        "missing": r"photos does not exist$",
        "file": r"photos is not a folder$",
        "no clients": r"photos holds no folders; there must be one for each client",
        "stray": r"ann/9.png must lie in the folder of its class",
        "empty client": r"dan holds no images; expected folders of classes",
        "deep": r"ann/cat/more is a folder in the folder of a class",
        "mixed": r"ann has the folders train and test, dan has not",
        "no test": r"no client in .*photos has images in its folder test",
    }[case]
    with pytest.raises(ConfigError, match=f"^source: .*{message}"):
        make(tmp_path)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_damaged_images_are_named_and_leave_nothing(tmp_path: Path, content: bytes | None) -> None:
    bad = write_folders(tmp_path / "photos") / "cem" / "dog" / "3.png"
    bad.write_bytes(bad.read_bytes()[:200] if content is None else content)
    with pytest.raises(ConfigError, match=r"^data: .*cem/dog/3.png cannot be read as an image: ") as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "ann" / "cat"
    folder.mkdir(parents=True)
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(folder / "0.png")
    with pytest.raises(ConfigError, match=r"only 8 bits per channel are supported"):
        make(tmp_path)


def test_hidden_and_other_files_do_not_matter(tmp_path: Path) -> None:
    photos = write_folders(tmp_path / "photos")
    (photos / ".cache").mkdir()
    (photos / "readme.txt").write_text("")
    (photos / "ann" / "cat" / "notes.txt").write_text("")
    assert len(make(tmp_path).samples.y) == 24
