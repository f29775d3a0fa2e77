"""The table at the end of a run, and where to look further."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.table import Table

from pfl_lightning.metrics.record import Metric


def closing_table(metrics: dict[str, list[float]], last: Mapping[str, float], metric: Metric) -> Table:
    """Last and best values of a whole run.

    Args:
        metrics: the content of metrics.csv.
        last: the last value of each column, NaN where the last test was not finite. Columns without a test are absent.
        metric: of the task.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(metric.label)
    for title in ("last", "best", "in round"):
        table.add_column(title, justify="right", no_wrap=True)
    name = metric.name
    rows = {
        "personal models, before local training": f"all_{name}_before",
        "  worst tenth of the clients, before": f"all_{name}_before_worst10",
        "personal models, after local training": f"all_{name}_after",
        "personal models, fine-tuned copies": f"all_{name}_finetuned",
        "plain global model": f"all_global_{name}",
    }
    if f"all_{name}_before" not in last:
        rows = {
            "the round's clients, before local training": f"{name}_before",
            "the round's clients, after local training": f"{name}_after",
        }
    for label, column in rows.items():
        if column in last:
            best = metric.best(metrics[column])
            reached = (metric.text(best[0], 2), f"{metrics['round'][best[1]]:.0f}") if best else ()
            table.add_row(label, metric.text(last[column], 2), *reached)
    table.add_section()
    if tested := _known(metrics.get("all_clients", [])):
        table.add_row("clients that evaluations test", f"{tested[-1]:,.0f}")
    if share := _known(metrics.get("personal_share", [])):
        table.add_row("share of personal parameters", f"{100 * share[-1]:.3g} %")
    for label, column in {"sent up by all clients": "up_bytes", "sent down to all clients": "down_bytes"}.items():
        if sent := _known(metrics.get(column, [])):
            table.add_row(label, human_bytes(sum(sent)))
    return table


def human_bytes(count: float) -> str:
    """Bytes in binary units: 12.3 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def tensorboard_command(run_dir: Path) -> str:
    """The command that shows this run beside its neighbours."""
    here, root = Path.cwd(), run_dir.resolve().parent
    if here.is_relative_to(root):  # the neighbours would be everything a person has
        root = run_dir.resolve()
    return f"tensorboard --logdir {shlex.quote(os.path.relpath(root) if root.is_relative_to(here) else str(root))}"


def resume_command(run_dir: Path) -> str:
    """The command that continues this run."""
    return f"pfl-fit --resume {shlex.quote(str(run_dir))}"


def _known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]
