"""Columns of numbers that a notebook shows as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from typing_extensions import override

from pfl_lightning.metrics.record import RoundRecord

SHOWN_ROWS = 10


class Table(dict[str, list[Any]]):
    """Column to values, one for each row. `pandas.DataFrame(table)` takes it as it is.

    A notebook shows the last rows. Values that do not exist are NaN.
    """

    @classmethod
    def of_rounds(cls, records: Sequence[RoundRecord], columns: Iterable[str]) -> Table:
        """One row for each round."""
        rows = [{**record.scalars, "round": record.round} for record in records]
        names = dict.fromkeys(["round", *columns])
        return cls({name: [row.get(name, math.nan) for row in rows] for name in names})

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.values()), []))

    def _cells(self) -> list[list[str]]:
        start = max(0, self.num_rows - SHOWN_ROWS)
        return [[_text(value[i]) for value in self.values()] for i in range(start, self.num_rows)]

    @override
    def __repr__(self) -> str:
        rows = [list(self), *self._cells()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines[:1], *([self._hidden] if self._hidden else []), *lines[1:]])

    @property
    def _hidden(self) -> str:
        """A line about the rows not shown."""
        return f"… {self.num_rows - SHOWN_ROWS} earlier rows" if self.num_rows > SHOWN_ROWS else ""

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._cells())
        hidden = (
            f'<tr><td colspan="{len(self)}" style="text-align: left">{self._hidden}</td></tr>' if self._hidden else ""
        )
        return f"<table><tr>{head}</tr>{hidden}{body}</table>"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)
