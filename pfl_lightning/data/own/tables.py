"""Tables: one row for each sample, with columns for its client, its label and its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from pfl_lightning.data.own.columns import Kind
from pfl_lightning.data.own.image_files import Channels, ImageShape, Size
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.source import Source, existing
from pfl_lightning.data.own.table_source import ImageTableSource, TableSource
from pfl_lightning.foundation.errors import require


class Table(OwnData):
    """Rows of a CSV or Parquet file, with numbers as inputs.

    Args:
        source: the file.
        label: column of the label. Several columns for several numbers to predict.
        client: column that names the client of each row. null if a partition deals the rows.
        features: columns of the inputs. All other columns by default. In Parquet files a single column may hold lists
            of one length: floats, or whole numbers, which are tokens.
        split: column with the words train and test. By default each client splits its rows by `test_share`.
        kind: whether the labels are classes or numbers to predict.
        **kwargs: as for all data of your own.
    """

    def __init__(
        self,
        source: str | Path,
        label: str | list[str] = "label",
        client: str | None = "client",
        features: list[str] | None = None,
        split: str | None = None,
        kind: Kind = "classes",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.labels = _label_columns(label, kind)
        require(features != [], "features", features, "at least one column, or null")
        self.source, self.client, self.features, self.split, self.targets = source, client, features, split, kind

    @override
    def origin(self) -> str:
        return Path(self.source).stem

    @override
    def open_source(self) -> Source:
        return TableSource(
            existing(self.source, False), self.labels, self.client, self.features, self.split, self.targets
        )


class ImageTable(OwnData):
    """Rows of a CSV or Parquet file that name image files.

    Args:
        source: the file.
        path: column with the path of each image, relative to the folder of the table.
        label: column of the label.
        client: column that names the client of each row. null if a partition deals the rows.
        split: column with the words train and test. By default each client splits its rows by `test_share`.
        size: height and width of the images that the net sees, or one number for both. Needed if images differ in size.
        channels: 1 for grey, 3 for colour. By default as the first image.
        kind: whether the labels are classes or numbers to predict.
        **kwargs: as for all data of your own.
    """

    def __init__(
        self,
        source: str | Path,
        path: str = "path",
        label: str | list[str] = "label",
        client: str | None = "client",
        split: str | None = None,
        size: Size | None = None,
        channels: Channels | None = None,
        kind: Kind = "classes",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.labels = _label_columns(label, kind)
        self.source, self.path, self.client, self.split, self.targets = source, path, client, split, kind
        self.shape = ImageShape.of(size, channels)

    @override
    def origin(self) -> str:
        return Path(self.source).stem

    @override
    def open_source(self) -> Source:
        table = existing(self.source, folder=False)
        return ImageTableSource(table, self.labels, self.client, self.path, self.split, self.targets, self.shape)


def _label_columns(label: str | list[str], kind: Kind) -> list[str]:
    require(kind in ("classes", "numbers"), "kind", kind, "classes or numbers")
    labels = [label] if isinstance(label, str) else list(label)
    fits = len(labels) == 1 or (kind == "numbers" and len(labels) > 0)
    require(fits, "label", label, "one column, or several columns of numbers to predict")
    return labels
