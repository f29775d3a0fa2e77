"""Files appear complete or not at all, follow the umask, and never follow a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pfl_lightning.foundation.atomic_files import replacing, temporary_path, write_text


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def fail_in_the_middle() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_the_middle()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_next_write_replaces_what_a_kill_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    temporary_path(path).write_text("half of an earlier attempt, longer than the new one")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_under_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "config.yaml"
    temporary_path(path).symlink_to(mine)
    write_text(path, "new")
    assert mine.read_text() == "precious"
    assert path.read_text() == "new"
    assert not path.is_symlink()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_permissions_follow_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
