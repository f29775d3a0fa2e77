"""HuggingFace data sets on disk."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from pfl_lightning.data.own.dataset_source import DatasetSource, Keys
from pfl_lightning.data.own.image_files import ImageShape
from pfl_lightning.data.own.source import file_identity
from pfl_lightning.foundation.errors import ConfigError


class HuggingFaceSource(DatasetSource):
    """Reads a folder that `save_to_disk` wrote.

    Args:
        folder: the folder.
        keys: columns of the values of a sample.
        shape: the shape that images get.
    """

    def __init__(self, folder: Path, keys: Keys, shape: ImageShape) -> None:
        self.folder = folder
        try:
            datasets = importlib.import_module("datasets")
        except ImportError as error:
            raise ConfigError(
                "source: a HuggingFace data set needs the package datasets: pip install 'pfl_lightning[own_data]'"
            ) from error
        try:
            found = datasets.load_from_disk(str(folder))
        except Exception as error:  # whatever is in the folder
            reason = " ".join(str(error).split())
            raise ConfigError(f"source: {folder} is not a data set that save_to_disk wrote: {reason}") from error
        parts = dict(found) if isinstance(found, dict) else {"train": found}
        if "train" not in parts:
            raise ConfigError(f"source: {folder} has no split train; it has {', '.join(parts)}")
        for key, column in zip(("inputs", "label", "client"), keys, strict=True):
            if column is not None and column not in parts["train"].column_names:
                has = ", ".join(parts["train"].column_names)
                raise ConfigError(f"{key}: {folder} has no column {column!r}; it has {has}")
        super().__init__(parts["train"], parts.get("test"), keys, shape, folder.name)

    @override
    def identity(self) -> Iterator[str]:
        yield from super().identity()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.name.startswith("cache-"):  # caches of the library do not matter
                yield file_identity(path)

    @override
    def class_names(self) -> list[str] | None:
        names = getattr(self.parts[0].features[self.keys.label], "names", None)
        return list(names) if names else None
