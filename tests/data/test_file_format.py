"""Data sets in our file format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfl_lightning.data import Samples
from pfl_lightning.data.file_format import RouteError, content_sha256, read_samples, write_samples

X, Y = torch.arange(48, dtype=torch.uint8).view(6, 2, 2, 2), torch.arange(6)
OWNED = Samples(X, Y, 4, torch.tensor([0, 1, 1, 0, 1, 0]), ("ann", "bob"))


def test_owners_come_back(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    write_samples(OWNED, tmp_path / "a.safetensors", tmp_path / "scratch")
    again = read_samples(tmp_path / "a.safetensors", content_sha256(OWNED))
    assert again.owners is not None
    assert again.owners.equal(torch.tensor([0, 1, 1, 0, 1, 0]))
    assert (again.owner_names, again.num_train) == (("ann", "bob"), 4)
    assert again.x.equal(X)
    write_samples(Samples(X, Y, 4), tmp_path / "b.safetensors", tmp_path / "scratch")
    assert read_samples(tmp_path / "b.safetensors")[3:] == (None, ())
    assert list((tmp_path / "scratch").iterdir()) == []


def test_owners_are_part_of_the_checksum(tmp_path: Path) -> None:
    others = [OWNED._replace(owner_names=("ann", "eve")), OWNED._replace(owners=Y), Samples(X, Y, 4)]
    assert len({content_sha256(samples) for samples in [OWNED, *others]}) == 4
    write_samples(OWNED, tmp_path / "a.safetensors", tmp_path)
    with pytest.raises(RouteError, match="damaged"):
        read_samples(tmp_path / "a.safetensors", content_sha256(others[0]))
