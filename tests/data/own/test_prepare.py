"""The prepared file: written once, whole or not at all, shared, and renewed when the source changes."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from pfl_lightning.data import ClientArrays, Table
from pfl_lightning.data.own import alone, prepare, prepared_file
from pfl_lightning.data.own.moments import Moments
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.own_files import write_arrays, write_table


def make(folder: Path, **options: Any) -> Table:
    data = Table(folder / "people.csv", root=folder / "data", **options)
    data.setup(0)
    return data


def prepared(folder: Path) -> list[Path]:
    return sorted((folder / "data" / "prepared").iterdir())


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    written: list[str] = []
    fill = prepare._fill

    def counting(*args: Any) -> None:
        written.append(args[-1])
        fill(*args)

    monkeypatch.setattr(prepare, "_fill", counting)
    return written


def test_written_once_and_renewed_when_the_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = count_writes(monkeypatch)
    path = write_table(tmp_path / "people.csv")
    first = make(tmp_path).values_sha256()
    assert make(tmp_path).values_sha256() == first
    make(tmp_path, test_share=0.5, normalize="unit", seed=3)  # none of these is in the file
    assert written == ["Table_people"]
    os.utime(path, ns=(1, 1))  # touched, but the same: another file, the same values
    assert make(tmp_path).values_sha256() == first
    path.write_text(path.read_text().replace("ann,0,", "ann,1,", 1))
    assert make(tmp_path).values_sha256() != first
    make(tmp_path, features=["height"])
    assert len(written) == 4
    assert len(prepared(tmp_path)) == 4


def test_any_tool_can_read_it(tmp_path: Path) -> None:
    write_table(tmp_path / "people.csv")
    data = make(tmp_path)
    with safe_open(prepared(tmp_path)[0], framework="pt") as file:
        assert set(file.keys()) == {"x", "y", "owners", "owner_names", "class_names", "mean", "std"}
        assert file.get_tensor("x").equal(data.samples.x)
        assert file.get_tensor("owners").tolist() == [0, 1, 2] * 10
        assert file.metadata()["sha256"] == data.values_sha256()
    assert oct(prepared(tmp_path)[0].stat().st_mode & 0o777) == oct(0o666 & ~_umask())


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("damage", ["byte", "short", "empty", "version", "nonsense"])
def test_damaged_files_are_written_again(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "people.csv")
    expected = make(tmp_path).values_sha256()
    path = prepared(tmp_path)[0]
    content = bytearray(path.read_bytes())
    if damage == "byte":
        content[prepared_file.HEADER_BYTES + 5] ^= 1
    elif damage == "version":
        content = bytearray(bytes(content).replace(b'"version": "1"', b'"version": "0"'))
    path.write_bytes({"short": content[:-1], "empty": b"", "nonsense": b"x" * 9000}.get(damage, content))
    written = count_writes(monkeypatch)
    assert make(tmp_path).values_sha256() == expected
    assert written == ["Table_people"]
    make(tmp_path)
    assert len(written) == 1


def test_inputs_are_mapped_and_read_only(tmp_path: Path) -> None:
    write_table(tmp_path / "people.csv")
    data = make(tmp_path)
    maps = Path("/proc/self/maps").read_text()
    [line] = [line for line in maps.splitlines() if str(prepared(tmp_path)[0]) in line]
    assert line.split()[1] == "r--s"  # shared between processes, never copied
    assert int(line.partition("-")[0], 16) <= data.samples.x.data_ptr() < int(line.split()[0].partition("-")[2], 16)


def test_several_processes_prepare_once(tmp_path: Path) -> None:
    write_arrays(tmp_path / "clients", rows=400)
    context = multiprocessing.get_context("fork")
    results, all_have_looked = context.SimpleQueue(), context.Barrier(4)

    def work() -> None:
        data = ClientArrays(tmp_path / "clients", root=tmp_path / "data")
        fill, read, count = prepare._fill, prepare.read_prepared, 0

        def look_together(path: Path) -> Any:
            prepare.read_prepared = read
            found = read(path)
            all_have_looked.wait(60)  # nobody writes before everybody has seen that the file is missing
            return found

        def counting(*args: Any) -> None:
            nonlocal count
            count += 1
            fill(*args)

        prepare._fill, prepare.read_prepared = counting, look_together
        data.setup(0)
        results.put((count, data.values_sha256()))

    processes = [context.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    answers = [results.get() for _ in processes]
    assert sum(count for count, _ in answers) == 1
    assert len({sha256 for _, sha256 in answers}) == 1
    assert len(prepared(tmp_path)) == 1  # no lock, nothing unfinished


def test_waits_for_a_process_that_gives_up(tmp_path: Path) -> None:
    """The file that we waited for is gone; a new one must be opened, not the one without a name."""
    path = tmp_path / "a.safetensors"
    aside = tmp_path / ".a.safetensors.tmp"
    flock = fcntl.flock
    calls = 0

    def other_gives_up(file: Any, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            aside.unlink()
        flock(file, operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alone.fcntl, "flock", other_gives_up)
        with alone.writing_alone(path, shared=True) as (name, file):
            file.write(b"whole")
            file.flush()
            os.replace(name, path)
    assert calls == 2
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unfinished_file_is_overwritten(tmp_path: Path) -> None:
    write_table(tmp_path / "people.csv")
    make(tmp_path)
    path = prepared(tmp_path)[0]
    path.rename(path.with_name(f".{path.name}.tmp"))  # as a kill would leave it, but longer
    with path.with_name(f".{path.name}.tmp").open("ab") as file:
        file.write(b"more")
    make(tmp_path)
    assert prepared(tmp_path) == [path]


def test_works_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(alone.fcntl, "flock", no_locks)
    write_table(tmp_path / "people.csv")
    make(tmp_path)
    assert len(prepared(tmp_path)) == 1


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / ".a.tmp").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), alone.writing_alone(tmp_path / "a", shared=True):
        pass
    assert target.read_text() == "mine"


def test_a_disk_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "people.csv")
    (tmp_path / "data").write_text("a file where a folder is needed")
    with pytest.raises(ConfigError, match=r"^root: cannot write .*; set data.root or PFL_DATA to another directory$"):
        make(tmp_path)
    (tmp_path / "data").unlink()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepared_file.PreparedWriter, "add", full)
    with pytest.raises(ConfigError, match=r"^root: cannot write .*: No space left on device; "):
        make(tmp_path)
    assert not (tmp_path / "data").exists()


def test_a_stop_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    write_table(tmp_path / "people.csv")
    monkeypatch.setattr(prepared_file.PreparedWriter, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path)
    assert not (tmp_path / "data").exists()


def test_blocks_do_not_change_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks with training and test rows mixed give the same file as one block."""
    rng = np.random.default_rng(0)
    split = rng.choice(["train", "test"], 50)
    arrays = {"x": rng.integers(0, 256, (50, 4, 4, 3), dtype=np.uint8), "y": rng.integers(0, 3, 50)}
    np.savez(tmp_path / "a.npz", **arrays, client=rng.integers(0, 3, 50), split=split)
    hashes, stats = set(), set()
    for number, size in enumerate((2**22, 200, 1)):
        monkeypatch.setattr("pfl_lightning.data.own.source.BLOCK_BYTES", size)
        data = ClientArrays(tmp_path / "a.npz", root=tmp_path / str(number))
        data.setup(0)
        hashes.add(data.values_sha256())
        stats.add(tuple(data.batch(torch.tensor([3]), torch.device("cpu"))[0].flatten().tolist()))
    assert (len(hashes), len(stats)) == (1, 1)
    train = split == "train"
    assert data.samples.x.numpy().tolist() == np.concatenate([arrays["x"][train], arrays["x"][~train]]).tolist()
    pixels = arrays["x"][train] / 255
    batch, _ = data.batch(torch.arange(int(train.sum())), torch.device("cpu"))
    expected = (pixels - pixels.mean((0, 1, 2))) / pixels.std((0, 1, 2))
    np.testing.assert_allclose(batch.numpy().transpose(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)


def test_moments_of_blocks_are_those_of_the_whole() -> None:
    x = np.random.default_rng(0).normal([1e4, -3.0, 5.0], [1.0, 2.0, 0.0], (100, 3)).astype(np.float32)
    moments = Moments()
    for start in range(0, 100, 7):
        moments.add(x[start : start + 7])
    mean, std = moments.result()
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(std[:2], x.astype(np.float64).std(0)[:2], rtol=1e-9)
    assert std[2] == 1  # a constant column stays finite
