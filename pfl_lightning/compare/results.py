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
            self._check_data(cells)

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
            self.refused[path] = f"{', '.join(facts.changed_sources)} has changed since"
        else:
            self.finished[cell.id] = (path, facts)

    def _check_data(self, cells: Iterable[Cell]) -> None:
        """Refuse runs whose clients or samples differ from those of most runs with the same data settings."""
        for subject in ("partition_sha256", "samples"):
            groups: dict[str, dict[str, str]] = {}
            for cell in cells:
                digest = getattr(self.finished[cell.id][1], subject) if cell.id in self.finished else None
                if digest:
                    groups.setdefault(_data(cell), {})[cell.id] = digest
            for group in groups.values():
                self._refuse_unusual(group, subject.partition("_")[0])

    def _refuse_unusual(self, digests: Mapping[str, str], subject: str) -> None:
        (usual, most), *others = Counter(digests.values()).most_common()
        if others and others[0][1] == most:
            usual = ""  # nobody knows which one is right
        for cell, digest in digests.items():
            if digest != usual:
                verb = "differ" if subject.endswith("s") else "differs"
                place = self.finished.pop(cell)[0]
                self.refused[place] = f"its {subject} {verb} from other runs with the same data settings"


def _data(cell: Cell) -> str:
    """The settings that decide a partition."""
    data = dict(cell.config.get("data", {}))
    settings = {k: v for k, v in data.get("init_args", {}).items() if k not in ("root", "download")}
    seed = settings.get("seed")
    drawn = [{**data, "init_args": settings}, cell.seed if seed is None else seed]
    return json.dumps(drawn, sort_keys=True, default=repr)
