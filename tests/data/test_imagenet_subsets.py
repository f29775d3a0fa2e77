"""Tiny-ImageNet and Mini-ImageNet from small files in the official layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_lightning.data import DataSpec, MiniImageNet, TinyImageNet
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.image_files import plain, write_tree, write_zip


class Tiny(TinyImageNet):
    spec = DataSpec((3, 8, 8), 2)
    sizes = (4, 2)


TRAIN = {
    f"train/{name}/images/{name}_{i}.JPEG": plain(value + i) for name, value in (("n9", 90), ("n1", 10)) for i in (0, 1)
}
OFFICIAL = {
    **TRAIN,
    "val/images/val_0.JPEG": plain(91),
    "val/images/val_1.JPEG": plain(11),
    "val/val_annotations.txt": b"val_0.JPEG\tn9\t0\t0\t7\t7\nval_1.JPEG\tn1\t0\t0\t7\t7\n",
    "test/images/test_0.JPEG": plain(200),
    "wnids.txt": b"n9\nn1\n",
}
SORTED = {**TRAIN, "val/n9/val_0.JPEG": plain(91), "val/n1/val_1.JPEG": plain(11)}


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_tiny_imagenet_as_published(tmp_path: Path, form: str) -> None:
    if form == "zip":
        write_zip(tmp_path / "tiny-imagenet-200.zip", {f"tiny-imagenet-200/{k}": v for k, v in OFFICIAL.items()})
    else:
        write_tree(tmp_path / "tiny-imagenet-200", OFFICIAL)
    samples = Tiny(root=tmp_path, download=False).load()
    assert samples.x[:, 0, 0, 0].tolist() == [10, 11, 90, 91, 91, 11]
    assert samples.y.tolist() == [0, 0, 1, 1, 1, 0]
    assert samples.num_train == 4


def test_tiny_imagenet_with_a_sorted_validation_folder(tmp_path: Path) -> None:
    write_tree(tmp_path / "tiny-imagenet-200", SORTED)
    samples = Tiny(root=tmp_path, download=False).load()
    assert samples.x[4:, 0, 0, 0].tolist() == [11, 91]
    assert samples.y[4:].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val/val_annotations.txt": None}, r"val/val_annotations.txt is missing"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn9\n"}, r"val/val_annotations.txt does not name val_1.JPEG"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn9\nval_1.JPEG\tn5\n"}, r"names n5, which has no folder in train"),
        ({"train/n1/images/n1_0.JPEG": None}, r"wrong content: torch.uint8 images \(5, 8, 8, 3\) instead of"),
    ],
)
def test_tiny_imagenet_with_missing_files(tmp_path: Path, change: dict[str, bytes | None], message: str) -> None:
    files = {name: content for name, content in {**OFFICIAL, **change}.items() if content is not None}
    write_tree(tmp_path / "tiny-imagenet-200", files)
    with pytest.raises(ConfigError, match=message) as caught:
        Tiny(root=tmp_path, download=False).load()
    assert f"put into {tmp_path} (data.root or PFL_DATA): tiny-imagenet-200.zip" in str(caught.value)
    assert "\n" not in str(caught.value)


class Mini(MiniImageNet):
    sizes = (0, 4)
    num_classes = 2


BY_CLASS = {f"{name}/{name}{i}.jpg": plain(value + i, 12) for name, value in (("fox", 90), ("ant", 10)) for i in (0, 1)}


@pytest.mark.parametrize("form", ["folders", "folders below splits", "zip", "tables"])
def test_mini_imagenet_in_each_layout(tmp_path: Path, form: str) -> None:
    names = {"fox": "train/fox", "ant": "test/ant"}
    if form == "zip":
        write_zip(tmp_path / "mini-imagenet.zip", BY_CLASS)
    elif form == "tables":
        images = {f"images/{path.split('/')[1]}": content for path, content in BY_CLASS.items()}
        tables = {"train.csv": b"filename,label\nfox1.jpg,fox\nfox0.jpg,fox\n", "val.csv": b"filename,label\n"}
        tables["test.csv"] = b"filename,label\nant0.jpg,ant\nant1.jpg,ant\n"
        write_tree(tmp_path / "mini-imagenet", {**images, **tables, "images/unused.jpg": plain(0)})
    else:
        below = form == "folders below splits"
        moved = {
            f"{names[p.split('/')[0]] if below else p.split('/')[0]}/{p.split('/')[1]}": c for p, c in BY_CLASS.items()
        }
        write_tree(tmp_path / "mini-imagenet", moved)
    data = Mini(size=8, root=tmp_path)
    samples = data.load()
    classes = dict(zip(samples.x[:, 0, 0, 0].tolist(), samples.y.tolist(), strict=True))
    assert classes == {10: 0, 11: 0, 90: 1, 91: 1}
    assert samples.x.shape == (4, 8, 8, 3)
    assert samples.num_train == 0
    assert data.spec == DataSpec((3, 8, 8), 2)
    assert (tmp_path / "Mini_8.safetensors").is_file()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"filename,label\nfox7.jpg,fox\n", r"train.csv names fox7.jpg, which is not there"),
        (b"file,class\nfox1.jpg,fox\n", r"train.csv needs the columns filename and label"),
    ],
)
def test_mini_imagenet_with_a_wrong_table(tmp_path: Path, table: bytes, message: str) -> None:
    write_tree(tmp_path / "mini-imagenet", {**BY_CLASS, "train.csv": table})
    with pytest.raises(ConfigError, match=message):
        Mini(root=tmp_path).load()


def test_mini_imagenet_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        MiniImageNet(root=tmp_path).load()
    message = str(caught.value)
    assert "put into" in message
    assert "the folder mini-imagenet or mini-imagenet.zip with one folder per class" in message
    assert "\n" not in message
    with pytest.raises(ConfigError, match="size: 4 is not allowed"):
        MiniImageNet(size=4)
