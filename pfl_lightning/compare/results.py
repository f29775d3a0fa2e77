"""The results in a comparison's folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.run_facts import RunFacts, Unreadable, read_facts
from pfl_lightning.compare.run_folder import choose, scan


class Results:
    """Finished and unfinished runs of a comparison's cells.

    Args:
        folder: holds the run directories.
        published: cells by identity whose results are known without a run. A run in the folder goes before them.
    """

    def __init__(self, folder: Path, published: Mapping[str, tuple[Path, RunFacts]] | None = None) -> None:
        self.folder, self.published = folder, published or {}
        self.finished: dict[str, tuple[Path, RunFacts]] = {}
        self.unfinished: dict[str, Path] = {}
        """Cells with a run that can be continued, or that another process is working on."""
        self.refused: dict[Path, str] = {}
        """Directories that claim to hold a cell's run, and why they are left alone."""

    def refresh(self, cells: Iterable[Cell]) -> None:
        """Look for the runs of these cells, until the remaining ones agree with each other."""
        cells = list(cells)
        directories = scan(self.folder)
        refused = -1
        while refused != len(self.refused):  # a refused directory may have a better one beside it
            refused = len(self.refused)
            for cell in cells:
                self._find(cell, [path for path in directories.get(cell.id, []) if path not in self.refused])
            self._check_partitions(cells)

    def _find(self, cell: Cell, candidates: list[Path]) -> None:
        found, unusable = choose(cell, candidates)
        self.refused |= {one.path: one.reason for one in unusable}
        before = self.finished.pop(cell.id, None)
        self.unfinished.pop(cell.id, None)
        if found is None:
            self._publish(cell)
            return
        if found.state != "finished":
            self.unfinished[cell.id] = found.path
        elif before and before[0] == found.path:
            self.finished[cell.id] = before
        else:
            try:
                self.finished[cell.id] = (found.path, read_facts(found.path))
            except Unreadable as reason:
                self.refused[found.path] = str(reason)

    def _publish(self, cell: Cell) -> None:
        path, facts = self.published.get(cell.id, (None, None))
        if path is None or facts is None or path in self.refused:
            return
        if facts.changed_sources:
            self.refused[path] = f"the code of {', '.join(facts.changed_sources)} has changed since"
        else:
            self.finished[cell.id] = (path, facts)

    def _check_partitions(self, cells: Iterable[Cell]) -> None:
        """Refuse runs whose partition differs from that of most runs with the same data settings."""
        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            if cell.id in self.finished and self.finished[cell.id][1].partition_sha256:
                groups.setdefault(_data(cell), []).append(cell)
        for group in groups.values():
            counts = Counter(self.finished[cell.id][1].partition_sha256 for cell in group)
            (usual, most), *others = counts.most_common()
            if others and others[0][1] == most:
                usual = None  # nobody knows which one is right
            for cell in group:
                path, facts = self.finished[cell.id]
                if facts.partition_sha256 != usual:
                    self.refused[path] = "its partition differs from that of other runs with the same data settings"
                    del self.finished[cell.id]


def _data(cell: Cell) -> str:
    """The settings that decide a partition."""
    data = dict(cell.config.get("data", {}))
    settings = {k: v for k, v in data.get("init_args", {}).items() if k not in ("root", "download")}
    seed = settings.get("seed")
    drawn = [{**data, "init_args": settings}, cell.seed if seed is None else seed]
    return json.dumps(drawn, sort_keys=True, default=repr)
