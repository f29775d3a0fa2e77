"""Any torch or HuggingFace data set, dealt by a partition or by a value that names the client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from typing_extensions import override

from pfl_lightning.data.own.dataset_source import DatasetSource, Keys
from pfl_lightning.data.own.hugging_face import HuggingFaceSource
from pfl_lightning.data.own.image_files import Channels, ImageShape, Size
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.source import Source, existing
from pfl_lightning.foundation.errors import ConfigError, require


class FromDataset(OwnData):
    """A torch `Dataset` by class path or as an object, or a HuggingFace data set on disk.

    A sample is a pair (input, label) or a dict. Inputs are images (PIL, or uint8 tensors [C, H, W]), floats or whole
    numbers, which are tokens. All samples must have one shape. Samples are read once at every start, because a Python
    object does not tell whether its data has changed. `keep_as` avoids that.

    Args:
        dataset: the data set, or a class or function that makes it.
        test_dataset: the official test part, if there is one.
        source: folder that HuggingFace's save_to_disk wrote, in place of `dataset`. Of a DatasetDict, the splits train
            and test are read.
        inputs: position or key of the input in a sample.
        label: position or key of the label in a sample.
        client: position or key of the value that names the client. null if a partition deals the samples.
        keep_as: keep the prepared file under this name and reuse it. Choose another name when the data has changed.
        size: height and width of the images that the net sees, or one number for both. Needed if images differ in size.
        channels: 1 for grey, 3 for colour. By default as the first image.
        **kwargs: as for all data of your own.
    """

    def __init__(
        self,
        dataset: Callable[[], Dataset[Any]] | Dataset[Any] | None = None,
        test_dataset: Callable[[], Dataset[Any]] | Dataset[Any] | None = None,
        source: str | Path | None = None,
        inputs: int | str = 0,
        label: int | str = 1,
        client: int | str | None = None,
        keep_as: str | None = None,
        size: Size | None = None,
        channels: Channels | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (dataset is None) == (source is None):
            raise ConfigError("dataset: give either dataset or source, the folder of a HuggingFace data set")
        require(source is None or test_dataset is None, "test_dataset", test_dataset, "null with source")
        require(keep_as is None or keep_as != "", "keep_as", keep_as, "a name, or null")
        self.dataset, self.test_dataset, self.source = dataset, test_dataset, source
        self.keys, self.shape, self.keep_as = Keys(inputs, label, client), ImageShape.of(size, channels), keep_as
        self.keep_prepared = source is not None or keep_as is not None

    @override
    def origin(self) -> str:
        if self.keep_as:
            return self.keep_as
        return Path(self.source).name if self.source else _name(self.dataset)

    @override
    def open_source(self) -> Source:
        if self.source is not None:
            return HuggingFaceSource(existing(self.source, folder=True), self.keys, self.shape)
        test = None if self.test_dataset is None else _make("test_dataset", self.test_dataset)
        name = self.keep_as or _name(self.dataset)
        return DatasetSource(_make("dataset", self.dataset), test, self.keys, self.shape, name)


def _make(key: str, dataset: Any) -> Any:
    """The data set itself, made by its class or function where needed."""
    if isinstance(dataset, Dataset) or not callable(dataset):
        made = dataset
    else:
        try:
            made = dataset()
        except Exception as error:  # a stranger's code may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"{key}: {_name(dataset)} cannot be made: {reason}") from error
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise ConfigError(f"{key}: {type(made).__name__} has no length or no items; use a data set that can be indexed")
    return made


def _name(dataset: Any) -> str:
    """The class of a data set that may not have been made yet."""
    if isinstance(dataset, Dataset):
        return type(dataset).__name__
    kinds = [part for part in getattr(dataset, "args", ()) if isinstance(part, type)]  # a partial of the config parser
    return getattr(kinds[0] if kinds else dataset, "__name__", type(dataset).__name__)
