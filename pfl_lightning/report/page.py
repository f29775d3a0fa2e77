"""The page: one HTML file that opens offline, and the figures as files."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import yaml
from markupsafe import Markup, escape
from matplotlib.figure import Figure

import pfl_lightning
from pfl_lightning.foundation.atomic_files import make_folder, write_bytes, write_text
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.monitor.closing import human_bytes
from pfl_lightning.report.comparison import ComparisonTable
from pfl_lightning.report.drawn import Drawn
from pfl_lightning.report.groups import Group, Reported, differing_keys
from pfl_lightning.report.run_data import RunData
from pfl_lightning.report.style import SETTINGS

PAGE = "report.html"
FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"metadata": {"Software": None}, "dpi": 220},
    "pdf": {"metadata": {"CreationDate": None, "Producer": None, "Creator": None}},
}
"""Formats of the figures. Without dates, the same runs give the same files."""


def write_report(
    folder: Path,
    groups: Sequence[Group],
    shown: Reported,
    drawn: Sequence[Drawn],
    tables: Sequence[ComparisonTable] = (),
) -> list[Path]:
    """Write report.html and the folder figures. Returns the files."""
    files = [folder / PAGE]
    try:
        make_folder(folder / "figures")
        pictures = []
        for one in drawn:
            rendered = {kind: render(one.figure, kind) for kind in FORMATS}
            for kind, content in rendered.items():
                files.append(folder / "figures" / f"{one.name}.{kind}")
                write_bytes(files[-1], content)
            pictures.append(_picture(one, rendered["svg"]))
        write_text(files[0], page(groups, shown, pictures, tables))
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from error
    return files


def render(figure: Figure, kind: str) -> bytes:
    """A figure as the content of a file."""
    target = io.BytesIO()
    with matplotlib.rc_context({**SETTINGS, "pdf.fonttype": 42}):
        figure.savefig(target, format=kind, **FORMATS[kind])
    return target.getvalue()


def page(
    groups: Sequence[Group],
    shown: Reported,
    pictures: Sequence[dict[str, Any]],
    tables: Sequence[ComparisonTable] = (),
) -> str:
    """The HTML text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pfl_lightning.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["with_code"] = with_code
    return environment.get_template("page.html").render(
        title=_title(groups, tables),
        shown=shown,
        pictures=pictures,
        tables=tables,
        rows=[_row(group.label, run, shown) for group in groups for run in group.runs],
        mixed=len({shown.column_of(group.first) for group in groups}) > 1,
        samples=_samples(groups),
        differing=differing_keys(groups) if len(groups) > 1 else [],
        groups=groups,
        configs=[(group.label, yaml.safe_dump(_public(group.first), sort_keys=False)) for group in groups],
        version=pfl_lightning.__version__,
    )


def _samples(groups: Sequence[Group]) -> list[str]:
    """A sentence for the runs whose evaluations test some of the clients only."""
    labels: dict[str, list[str]] = {}
    for group in groups:
        for sample in dict.fromkeys(run.sample for run in group.runs if run.sample):
            labels.setdefault(sample, []).append(group.label)
    drawn = "drawn once from the run's seed (`loop.eval_clients`)"
    return [f"Evaluations of {', '.join(names)} test {sample}, {drawn}." for sample, names in labels.items()]


def with_code(text: str) -> Markup:
    """Text for HTML. `code` in backticks becomes typewriter."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _title(groups: Sequence[Group], tables: Sequence[ComparisonTable]) -> str:
    if tables:
        return ", ".join(dict.fromkeys(f"Comparison {table.name}" for table in tables))
    return ", ".join(dict.fromkeys(group.first.method for group in groups))


def _picture(drawn: Drawn, svg: bytes) -> dict[str, Any]:
    width = drawn.figure.get_size_inches()[0]
    return {
        "name": drawn.name,
        "title": drawn.title,
        "caption": drawn.caption,
        "source": "data:image/svg+xml;base64," + base64.b64encode(svg).decode(),
        "width": round(96 * width),
    }


def _row(label: str, run: RunData, shown: Reported) -> dict[str, str]:
    """A run as a row of the table."""
    column = shown.column_of(run)
    rounds, values = run.series(column)
    best = shown.metric.best(values.tolist())
    worst = run.series(f"{column}_worst10")[1]
    summary = run.summary
    return {
        "run": label,
        "seed": str(run.seed),
        "column": column,
        "rounds": f"{run.metrics['round'][-1]:.0f}" + ("" if summary else " (not finished)"),
        "last": shown.metric.text(float(values[-1]), 2),
        "best": f"{shown.metric.text(best[0], 2)} (round {rounds[best[1]]:.0f})" if best else "",
        "worst": shown.metric.text(float(worst[-1]), 2) if len(worst) else "",
        "bytes": human_bytes(float(run.total_bytes()[-1])),
        "seconds": f"{sum(run.metrics.get('seconds', [0.0])):,.0f}",
        "version": " ".join(str(summary[key])[:12] for key in ("version", "git_commit") if summary.get(key)),
        "model": str(summary.get("model_sha256", ""))[:16],
        "clients": str(summary.get("clients_sha256", ""))[:16],
        "place": run.path.name,
    }


def _public(run: RunData) -> dict[str, Any]:
    """The config without the place of the run."""
    return {key: value for key, value in run.config.items() if key != "run_dir"}
