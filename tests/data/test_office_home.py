"""OfficeHome from small files in the official layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfl_lightning.data import IID, DataSpec, OfficeHome
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.image_files import plain, write_tree, write_zip


class Small(OfficeHome):
    sizes = (0, 16)
    num_classes = 2


def files(real_world: str = "Real World") -> dict[str, bytes]:
    """Two classes in four domains, two images of each; the red value is 60 for each domain and 20 for each class."""
    return {
        f"{domain}/{name}/0000{i}.jpg": plain(60 * d + 20 * c + i, 12)
        for d, domain in enumerate(("Art", "Clipart", "Product", real_world))
        for c, name in enumerate(("Alarm_Clock", "Webcam"))
        for i in (0, 1)
    }


@pytest.mark.parametrize("form", ["folder", "zip", "RealWorld"])
def test_each_domain_is_a_client(tmp_path: Path, form: str) -> None:
    if form == "zip":
        extra = {"ImageInfo.csv": b"", "Art/readme.txt": b""}
        inside = {f"OfficeHomeDataset_10072016/{k}": v for k, v in {**files(), **extra}.items()}
        write_zip(tmp_path / "OfficeHomeDataset_10072016.zip", inside)
    else:
        write_tree(tmp_path / "OfficeHome", files("RealWorld" if form == "RealWorld" else "Real World"))
    data = Small(size=8, root=tmp_path)
    data.setup(0)
    assert data.spec == DataSpec((3, 8, 8), 2)
    assert data.client_names == ("Art", "Clipart", "Product", "Real World")
    assert data.train_sizes.tolist() == [3] * 4
    assert data.test_sizes.tolist() == [1] * 4
    for client in range(4):
        indices = torch.cat([data.train_indices(client), data.test_indices(client)])
        red = data.samples.x[indices, 0, 0, 0]
        assert sorted(red.tolist()) == [60 * client + value for value in (0, 1, 20, 21)]
        assert (data.samples.y[indices] == red % 60 // 20).all()


def test_the_kept_file_knows_the_domains(tmp_path: Path) -> None:
    write_zip(tmp_path / "OfficeHome.zip", files())
    first = Small(size=8, root=tmp_path).load()
    (tmp_path / "OfficeHome.zip").unlink()
    again = Small(size=8, root=tmp_path).load()
    assert again.owners is not None
    assert again.owners.equal(first.owners)
    assert again.owner_names == first.owner_names


def test_domains_can_be_mixed(tmp_path: Path) -> None:
    write_tree(tmp_path / "OfficeHome", files())
    data = Small(size=8, root=tmp_path, num_clients=2, partition=IID())
    data.setup(0)
    assert data.train_sizes.tolist() == [6, 6]


def test_missing_files_are_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        OfficeHome(root=tmp_path).load()
    message = str(caught.value)
    assert (
        "the folder OfficeHomeDataset_10072016 or OfficeHomeDataset_10072016.zip with images in DOMAIN/CLASS/"
        in message
    )
    assert "\n" not in message
    write_tree(tmp_path / "OfficeHome", {name: content for name, content in files().items() if "Clipart" not in name})
    with pytest.raises(ConfigError, match="there is no image in Clipart"):
        Small(root=tmp_path).load()
    with pytest.raises(ConfigError, match="size: 4 is not allowed"):
        OfficeHome(size=4)
