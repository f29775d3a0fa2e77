"""The numbers and the survivors, as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STATUS = ("killed", "endless", "survived")


def write_report(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a table of all files and a list of the survivors."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["file"]].append(row)
    lines = ["# Mutants", "", table(groups), "", "## Survivors", ""]
    for file, group in sorted(groups.items()):
        survivors = [row for row in group if row["status"] == "survived"]
        if survivors:
            lines += [f"### {file}", "", *(survivor(row) for row in survivors), ""]
    path.write_text("\n".join(lines))


def table(groups: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["| file | tried | killed | endless | survived |", "|---|---|---|---|---|"]
    everything = [row for group in groups.values() for row in group]
    for name, group in [*sorted(groups.items()), ("**all**", everything)]:
        counts = [sum(row["status"] == status for row in group) for status in STATUS]
        lines.append(f"| {name} | {len(group)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def survivor(row: dict[str, Any]) -> str:
    if "before" not in row:
        return f"- {row['name']}"
    return f"- line {row['line']}, `{row['place']}`, {row['what']}: `{row['before']}` → `{row['after']}`"
