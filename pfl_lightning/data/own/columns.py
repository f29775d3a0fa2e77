"""Columns of a table as labels, clients, splits and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.data.own.table_file import Column, TableFile
from pfl_lightning.foundation.errors import ConfigError

SPLITS = {"train": False, "test": True}
WHOLE_NUMBER, NUMBER = re.compile(r"[+-]?\d{1,18}"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
INDEX_ROWS = 65_536

Kind = Literal["classes", "numbers"]


class Index(NamedTuple):
    """All columns of a table but its inputs."""

    y: NDArray[np.generic]
    """Class numbers (int64 [N]), class names (text [N]) or numbers to predict (float32 [N, K])."""
    owners: NDArray[np.str_] | None
    is_test: NDArray[np.bool_] | None


def read_index(table: TableFile, labels: list[str], client: str | None, split: str | None, kind: Kind) -> Index:
    """Read and check the labels, the clients and the split of every row."""
    wanted = [*labels, *(name for name in (client, split) if name is not None)]
    blocks = list(table.blocks(wanted, INDEX_ROWS))
    if not blocks:
        raise ConfigError(f"source: {table.path} has no rows")
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in wanted}
    if kind == "numbers":
        y: Column = np.stack([as_numbers(name, columns[name], table.place) for name in labels], axis=1)
    else:
        y = _classes(columns[labels[0]], table.place)
    owners = None if client is None else _texts(client, columns[client], table.place)
    is_test = None if split is None else _split(split, columns[split], table)
    return Index(y, owners, is_test)


def as_numbers(name: str, values: Column, place: Callable[[int], str], start: int = 0) -> NDArray[np.float32]:
    """A column of numbers. Raises a `ConfigError` that names the line of a value other than a number."""
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which is refused with the line later
            return values.astype(np.float32)
    except ValueError as error:
        wrong = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
        raise ConfigError(
            f"data: {place(start + wrong)}: {values[wrong].item()!r} in column {name} is not a number"
        ) from error


def _classes(values: Column, place: Callable[[int], str]) -> Column:
    """Class numbers, or class names."""
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    texts = values.astype(np.str_)
    different = np.unique(texts).tolist()
    if all(WHOLE_NUMBER.fullmatch(text) for text in different):
        return texts.astype(np.int64)
    wrong = ""
    if all(_is_number(text) for text in different):
        wrong = next(text for text in different if not WHOLE_NUMBER.fullmatch(text))
        reason = f"label {wrong} is not a whole number; for numbers to predict set data.kind to numbers"
    elif "" in different:
        reason = "the label is missing"
    else:
        return texts
    raise ConfigError(f"data: {place(int((texts == wrong).argmax()))}: {reason}")


def _texts(name: str, values: Column, place: Callable[[int], str]) -> NDArray[np.str_]:
    texts: NDArray[np.str_] = values.astype(np.str_)
    if (texts == "").any():
        raise ConfigError(f"data: {place(int((texts == '').argmax()))}: column {name} has no value")
    return texts


def _split(name: str, values: Column, table: TableFile) -> NDArray[np.bool_]:
    words = np.char.lower(values.astype(np.str_))
    wrong = ~np.isin(words, list(SPLITS))
    if wrong.any():
        row = int(wrong.argmax())
        raise ConfigError(f"data: {table.place(row)}: {values[row].item()!r} in column {name}; use train or test")
    is_test: NDArray[np.bool_] = words == "test"
    if not is_test.any() or is_test.all():
        raise ConfigError(f"split: column {name} of {table.path} names {words[0]} samples only")
    return is_test


def _is_number(value: object) -> bool:
    return NUMBER.fullmatch(str(value)) is not None
