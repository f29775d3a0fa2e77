"""Getting data sets: order of routes, verification, one fetch for many, plain errors. Nothing here uses the network."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import struct
import threading
import urllib.error
from collections.abc import Callable, Iterator
from email.message import Message
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from pfl_lightning.data import EMNIST, MNIST, download, official
from pfl_lightning.data.download import check_reachable, fetch_file
from pfl_lightning.data.federated import DataSpec, Samples
from pfl_lightning.data.fetch import Recipe, Route, obtain
from pfl_lightning.data.file_format import RouteError, content_sha256, read_samples, write_samples
from pfl_lightning.data.official import Official
from pfl_lightning.foundation.errors import ConfigError

TINY = Samples(torch.arange(6 * 4, dtype=torch.uint8).view(6, 2, 2, 1), torch.tensor([0, 1, 2, 0, 1, 2]), 4)


def recipe(*routes: Route, sha256: str = "") -> Recipe:
    return Recipe("Tiny", list(routes), "tiny.zip", (6, 2, 2, 1), 4, 3, sha256)


def works(log: list[str] | None = None, name: str = "good", samples: Samples = TINY, online: bool = False) -> Route:
    def load(scratch: Path) -> Samples:
        assert list(scratch.iterdir()) == []
        if log is not None:
            log.append(name)
        return samples

    return Route(name, load, online)


def fails(error: Exception, name: str = "bad") -> Route:
    def load(scratch: Path) -> Samples:
        (scratch / "rest").write_text("half of it")
        raise error

    return Route(name, load, True)


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def same(a: Samples, b: Samples) -> bool:
    return a.x.equal(b.x) and a.y.equal(b.y) and a.num_train == b.num_train


def test_first_route_that_works_is_kept_and_used_next_time(tmp_path: Path) -> None:
    log: list[str] = []
    tiny = recipe(fails(OSError("no network")), works(log, "second"), works(log, "third"))
    for _ in range(2):
        assert same(obtain(tiny, tmp_path / "new", True), TINY)
    assert log == ["second"]
    assert visible(tmp_path / "new") == ["Tiny.safetensors"]
    assert (tmp_path / "new" / "Tiny.safetensors").stat().st_mode & 0o777 == 0o644


def test_the_error_lists_the_routes_tried_and_the_files_to_place(tmp_path: Path) -> None:
    tiny = recipe(fails(RouteError("broken\nsecond line")), fails(ValueError(), "odd"), works(name="net", online=True))
    with pytest.raises(ConfigError) as caught:
        obtain(tiny, tmp_path, download=False)
    message = str(caught.value)
    assert message.count("\n") == 0
    assert "Tiny.safetensors (not there); bad (not tried: data.download is false); odd (not tried" in message
    assert f"put into {tmp_path} (data.root or PFL_DATA): tiny.zip" in message
    with pytest.raises(ConfigError, match=r"bad \(broken\); odd \(ValueError\)"):
        obtain(recipe(*tiny.routes[:2]), tmp_path, download=True)
    assert visible(tmp_path) == []


def test_a_failed_fetch_leaves_no_directory_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Tiny is not in"):
        obtain(recipe(fails(RouteError("broken"))), tmp_path / "new" / "below", download=True)
    assert visible(tmp_path) == []


WRONG = {
    "labels": TINY._replace(y=TINY.y + 1),
    "label type": TINY._replace(y=TINY.y.int()),
    "shape": TINY._replace(x=TINY.x.view(6, 4, 1, 1)),
    "type": TINY._replace(x=TINY.x.float()),
    "split": TINY._replace(num_train=3),
    "pixel": TINY._replace(x=TINY.x + 1),
}


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("download", [False, True])
def test_an_attempt_without_success_leaves_nothing(tmp_path: Path, exists: bool, download: bool) -> None:
    if exists:
        (tmp_path / "new/root").mkdir(parents=True)
        (tmp_path / "new/root/Tiny.safetensors").write_text("damaged")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="could not be fetched"):
        obtain(recipe(fails(OSError("no network"))), tmp_path / "new/root", download)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("what", WRONG)
def test_wrong_content_is_never_kept(tmp_path: Path, what: str) -> None:
    sha256 = content_sha256(TINY)
    with pytest.raises(ConfigError, match=r"good \(wrong content: "):
        obtain(recipe(works(samples=WRONG[what]), sha256=sha256), tmp_path, True)
    assert visible(tmp_path) == []
    assert same(obtain(recipe(works(samples=WRONG[what]), works(), sha256=sha256), tmp_path, True), TINY)


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "cut":
        path.write_bytes(whole[:-5])
    elif how == "flipped":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    else:
        path.write_bytes(b"not ours")


@pytest.mark.parametrize("how", ["cut", "flipped", "foreign"])
def test_damaged_file_is_made_again_or_reported(tmp_path: Path, how: str) -> None:
    path = tmp_path / "Tiny.safetensors"
    obtain(recipe(works()), tmp_path, True)
    damage(path, how)
    with pytest.raises(ConfigError, match=r"Tiny.safetensors \((cannot be read|damaged)"):
        obtain(recipe(), tmp_path, True)
    assert same(obtain(recipe(works()), tmp_path, True), TINY)
    assert same(read_samples(path), TINY)


def test_a_file_of_other_content_than_known_is_refused(tmp_path: Path) -> None:
    write_samples(TINY._replace(x=TINY.x + 1), tmp_path / "Tiny.safetensors", Path(_made(tmp_path / "scratch")))
    with pytest.raises(RouteError, match="checksum"):
        read_samples(tmp_path / "Tiny.safetensors", content_sha256(TINY))


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"^data.root: cannot write to .*/file/below \(Not a directory\); set data.root"
    ):
        obtain(recipe(works()), tmp_path / "file" / "below", True)


def test_root_for_reading_only_serves_its_original_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert same(obtain(recipe(works()), tmp_path, True), TINY)
    assert list(tmp_path.iterdir()) == []


def _ask(root: Path, log: Path, start: Callable[[], object]) -> None:
    def load(scratch: Path) -> Samples:
        with log.open("a") as file:
            file.write("fetched\n")
        return TINY

    start()
    assert same(obtain(recipe(Route("logged", load, False)), root, True), TINY)


def test_processes_that_start_together_fetch_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(4)
    log = tmp_path / "log"
    processes = [context.Process(target=_ask, args=(tmp_path / "root", log, gate.wait)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert log.read_text() == "fetched\n"


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def place_idx(folder: Path, names: tuple[str, str, str, str]) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    folder.mkdir(parents=True)
    for name, values in zip(names, (images[:3], labels[:3], images[3:], labels[3:]), strict=True):
        (folder / name).write_bytes(idx(values))
    return images


def test_original_files_in_torchvisions_layout(tmp_path: Path) -> None:
    class Five(MNIST):
        sizes = (3, 2)
        sha256 = ""

    parts = "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
    # torchvision names the folder after the class that reads it
    images = place_idx(tmp_path / "MNIST" / "raw", parts)
    samples = Five(root=tmp_path, download=False).load()
    assert (samples.x[..., 0].numpy() == images).all()
    assert samples.y.tolist() == [3, 1, 4, 1, 5]
    assert samples.num_train == 3
    assert (tmp_path / "Five.safetensors").is_file()


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    data = EMNIST("balanced", root=tmp_path, download=False)
    data.sizes = (3, 2)
    parts = [f"emnist-balanced-{part}" for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3")]
    names = (*[f"{part}-ubyte" for part in parts], "emnist-balanced-test-labels-idx1-ubyte")
    images = place_idx(tmp_path / "EMNIST" / "raw", names)  # type: ignore[arg-type]
    assert (data.load().x[..., 0].numpy() == images.transpose(0, 2, 1)).all()
    assert data.spec == DataSpec((1, 28, 28), 47)


class FakeSVHN:
    """As torchvision hands out SVHN: channels first, `labels`; reads nothing but the archive it is given."""

    url = "http://nowhere.invalid/x"

    def __init__(self, root: str, download: bool, train: bool) -> None:
        if not (download and (Path(root) / "deep" / "a.zip").read_text() == "content"):
            raise RuntimeError("Dataset not found")
        self.data = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5) + (0 if train else 100)
        self.labels = np.array([1, 0], dtype=np.int64)


def test_archives_placed_by_hand_are_checked_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "_torchvision", lambda kind: FakeSVHN)
    archive = tmp_path / "root" / "deep" / "a.zip"
    archive.parent.mkdir(parents=True)
    archive.write_text("content")
    good = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
    samples = Official("Fake", "", {"deep/a.zip": good}).routes(tmp_path / "root")[0].load(_made(tmp_path / "one"))
    assert samples.x.shape == (4, 4, 5, 3)
    assert samples.x[0, 1, 2].tolist() == [1 * 5 + 2, 20 + 7, 40 + 7]
    assert samples.y.tolist() == [1, 0, 1, 0]
    with pytest.raises(RouteError, match=r"deep/a.zip is damaged"):
        Official("Fake", "", {"deep/a.zip": "0" * 32}).routes(tmp_path / "root")[0].load(_made(tmp_path / "two"))
    archive.unlink()
    with pytest.raises(RouteError, match="not there or damaged"):
        Official("Fake", "", {"deep/a.zip": good}).routes(tmp_path / "root")[0].load(_made(tmp_path / "three"))


def test_a_missing_package_is_named_before_anything_is_downloaded(tmp_path: Path) -> None:
    for route in Official("SVHN", "", needs="package_that_nobody_has").routes(tmp_path):
        with pytest.raises(RouteError, match="needs the Python package package_that_nobody_has"):
            route.load(tmp_path)


def test_an_address_without_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(download, "ANSWER_SECONDS", -0.95)
    monkeypatch.setattr("urllib.request.urlopen", lambda request, timeout: never.wait() and BytesIO())
    try:
        with pytest.raises(RouteError, match=r"^cannot reach a.invalid: no answer; cannot reach b.invalid: no answer$"):
            check_reachable(["http://a.invalid/x", "http://b.invalid/y"])
    finally:
        never.set()


def test_one_address_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request, timeout):  # type: ignore[no-untyped-def]
        if "a.invalid" in request.full_url:
            raise urllib.error.URLError(OSError(101, "Network is unreachable"))
        raise urllib.error.HTTPError(request.full_url, 403, "no", Message(), None)

    monkeypatch.setattr("urllib.request.urlopen", answer)
    check_reachable(["http://a.invalid/x", "http://b.invalid/y"])
    with pytest.raises(RouteError, match=r"^cannot reach a.invalid: Network is unreachable$"):
        check_reachable(["http://a.invalid/x"])


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a web server on this machine that serves the file there.bin."""
    monkeypatch.setenv("no_proxy", "*")
    (_made(tmp_path / "www") / "there.bin").write_bytes(b"content")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "www")) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_downloaded_file_is_verified(tmp_path: Path, served: str) -> None:
    good = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
    address = f"{served}/there.bin"
    assert fetch_file(address, good, _made(tmp_path / "one"), "a.bin").read_bytes() == b"content"
    with pytest.raises(RouteError, match=r"^a.bin was downloaded but its MD5 differs$"):
        fetch_file(address, "0" * 32, _made(tmp_path / "two"), "a.bin")
