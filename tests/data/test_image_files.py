"""Image files from folders and zip archives."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.image_files import decode_images, open_tree
from tests.helpers.image_files import plain, png, write_tree, write_zip

FILES = {"a/x/1.jpg": plain(10), "a/y/2.PNG": plain(20), "a/notes.txt": b"text"}


@pytest.mark.parametrize("kind", ["folder", "folder in a folder", "zip"])
def test_folders_and_archives_look_the_same(tmp_path: Path, kind: str) -> None:
    hidden = {"a/.DS_Store": b"", "__MACOSX/a/x/1.jpg": b"", "a/x/._1.jpg": b""}
    if kind == "zip":
        write_zip(tmp_path / "set.zip", {**FILES, **hidden})
    else:
        write_tree(tmp_path / "set" / ("set" if kind == "folder in a folder" else ""), {**FILES, **hidden})
    with open_tree(tmp_path, ["set", "set.zip"]) as tree:
        assert tree.images() == [PurePosixPath("x/1.jpg"), PurePosixPath("y/2.PNG")]
        assert tree.text("notes.txt") == "text"
        pixels = decode_images(tree, tree.images(), 8, "test")
    assert pixels[:, 3, 5].tolist() == [[10, 11, 12], [20, 21, 22]]


def test_grey_images_get_three_channels_and_large_ones_are_resized(tmp_path: Path) -> None:
    halves = np.zeros((16, 16), dtype=np.uint8)
    halves[:, 8:] = 200
    write_tree(tmp_path / "set", {"x/1.png": png(halves)})
    with open_tree(tmp_path, ["set"]) as tree:
        pixels = decode_images(tree, tree.images(), 4, "test")
    assert pixels.shape == (1, 4, 4, 3)
    assert (pixels[0, :, 0] == 0).all()
    assert (pixels[0, :, 3] == 200).all()


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RouteError, match=r"^not there$"), open_tree(tmp_path, ["set"]):
        pass
    (tmp_path / "bad.zip").write_bytes(b"PK nonsense")
    with pytest.raises(RouteError, match=r"^bad.zip is damaged"), open_tree(tmp_path, ["bad.zip"]):
        pass
    write_tree(tmp_path / "set", {"x/1.jpg": plain(1)[:40], "y/2.jpg": plain(2)})
    with open_tree(tmp_path, ["set"]) as tree, pytest.raises(RouteError, match=r"^x/1.jpg cannot be decoded"):
        decode_images(tree, tree.images(), 8, "test")
