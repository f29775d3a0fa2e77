"""Records in a file that shrinks: compared with a plain dictionary."""

from __future__ import annotations

import os
import random

import pytest

from pfl_lightning.store.scratch_file import ScratchFile


def test_records_are_what_a_dictionary_would_hold_and_the_file_at_most_twice_as_large(tmp_path):
    rng = random.Random(0)
    file: ScratchFile[int] = ScratchFile(tmp_path)
    plain: dict[int, bytes] = {}
    for step in range(600):
        key = rng.randrange(40)
        if key in plain:
            assert file.read(key) == plain[key]
            file.remove(key)
            del plain[key]
        elif step % 7:
            plain[key] = file_content = rng.randbytes(rng.randrange(200))
            file.write(key, file_content)
        else:
            old = next(iter(plain), None)
            if old is not None:
                file.rename(old, key)
                plain[key] = plain.pop(old)
        assert file.size <= 2 * sum(map(len, plain.values()))
        assert os.fstat(file._file.fileno()).st_size == file.size
    assert plain
    assert {key: file.read(key) for key in plain} == plain
    assert all((key in file) == (key in plain) for key in range(40))


def test_a_file_has_no_name(tmp_path):
    file: ScratchFile[int] = ScratchFile(tmp_path)
    file.write(1, b"abc")
    assert list(tmp_path.iterdir()) == [], "a kill must leave nothing behind"


def test_a_write_that_is_cut_short_goes_on(tmp_path, monkeypatch):
    file: ScratchFile[int] = ScratchFile(tmp_path)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, start: whole(handle, data[:2], start))
    file.write(1, b"abcdefg")
    assert file.read(1) == b"abcdefg"


def test_a_file_that_was_cut_is_noticed(tmp_path):
    file: ScratchFile[int] = ScratchFile(tmp_path)
    file.write(1, b"abcdefg")
    os.ftruncate(file._file.fileno(), 3)
    with pytest.raises(OSError, match="shorter"):
        file.read(1)
