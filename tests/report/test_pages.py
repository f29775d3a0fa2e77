"""Every figure of the page, from real short runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pfl_lightning.cli.report import main
from pfl_lightning.report import page as pages
from pfl_lightning.report.curves import draw_convergence
from pfl_lightning.report.drawn import Wishes
from pfl_lightning.report.groups import group_runs, reported
from pfl_lightning.report.run_data import read_run
from pfl_lightning.report.run_figures import figures_of_run

PNG, PDF = b"\x89PNG", b"%PDF"
OF_ONE_RUN = {"convergence", "moments", "clients", "traffic", "phases", "labels"}


class Page(HTMLParser):
    """The figures of a page, the addresses in it, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.figures: list[str] = []
        self.sources: list[str] = []
        self.alternatives: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "figure":
            self.figures.append(found["id"] or "")
        if tag == "img":
            self.alternatives.append(found["alt"] or "")
        self.sources += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_data(self, data: str) -> None:
        self.words += data


def report(out: Path, *words: object) -> Page:
    with pytest.raises(SystemExit) as end:
        main([*map(str, words), "--out", str(out), "--quiet"])
    assert not end.value.code
    return Page((out / "report.html").read_text())


@pytest.mark.parametrize(
    ("run", "own"),
    [
        ("fedobp-0", {"personal-by-layer", "personal-of-tensor"}),
        ("fedselect", {"personal-by-layer", "personal-of-tensor", "mask-overlap"}),
        ("fedpurin", {"personal-by-layer", "personal-of-tensor", "mask-overlap", "activation-spread",
                      "activation-counts"}),
        ("series", {"forecasts"}),
        ("lambda", {"memory", "forecasts"}),
    ],
)  # fmt: skip
def test_a_run_has_the_figures_that_it_has_data_for(
    run: str, own: set[str], quick: None, runs: Path, tmp_path: Path
) -> None:
    page = report(tmp_path, runs / run)
    numbers = {"labels"} if run in ("series", "lambda") else set()
    assert set(page.figures) == (OF_ONE_RUN | own) - numbers
    assert len(page.figures) == len(set(page.figures))


def test_the_page_needs_no_other_file_and_figures_are_files_too(runs: Path, tmp_path: Path) -> None:
    page = report(tmp_path, runs / "fedobp-0")
    for name in page.figures:
        png, pdf, svg = ((tmp_path / f"figures/{name}.{kind}").read_bytes() for kind in ("png", "pdf", "svg"))
        assert png.startswith(PNG)
        assert pdf.startswith(PDF)
        assert b"</svg>" in svg
    assert page.sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert all(len(words) > 20 for words in page.alternatives)
    text = (tmp_path / "report.html").read_text()
    assert not re.findall(r"https?://(?!www\.w3\.org)", re.sub(r"base64,[^\"]+", "", text))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn and not rendered, which takes most of the time."""
    monkeypatch.setattr(pages, "render", lambda figure, kind: b"")


def test_many_runs_are_compared(quick: None, runs: Path, tmp_path: Path) -> None:
    page = report(tmp_path, *(runs / name for name in ("fedobp-0", "fedobp-1", "fedobp-low", "fedobp-high", "local")))
    assert {"convergence", "sweep", "clients", "gains", "traffic", "phases", "labels"} <= set(page.figures)
    assert "Influence of algorithm.quantile" in page.words
    assert "FedOBP (quantile 0.9)" in page.words
    assert "The line is the mean over seeds" in page.words


def test_the_page_has_the_numbers_and_hashes_of_the_run(quick: None, runs: Path, tmp_path: Path) -> None:
    page = report(tmp_path, runs / "fedobp-0")
    summary = json.loads((runs / "fedobp-0/summary.json").read_text())
    assert f"{100 * summary['last']['all_acc_before']:.2f} %" in page.words
    assert summary["model_sha256"][:16] in page.words
    assert summary["clients_sha256"][:16] in page.words
    assert "quantile: 0.9" in page.words


def test_the_same_figure_gives_the_same_bytes(runs: Path) -> None:
    run = read_run(runs / "fedobp-0")
    shown, groups = reported([run]), group_runs([run])
    for kind in pages.FORMATS:
        first, second = (pages.render(draw_convergence(groups, shown), kind) for _ in range(2))
        assert first == second


def test_a_run_in_progress_has_a_page(quick: None, runs: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    for name in ("config.yaml", "metrics.csv", "client_facts.csv"):
        (half / name).write_bytes((runs / "fedobp-0" / name).read_bytes())
    page = report(tmp_path / "page", half)
    assert "(not finished)" in page.words
    assert set(page.figures) == {"convergence", "moments", "traffic", "labels"}


def test_a_comparison_shows_the_rows_of_its_table(quick: None, runs: Path, tmp_path: Path) -> None:
    """Labels and columns are the table's. A run that is not in it is left out."""
    (tmp_path / "runs").mkdir()
    for name in ("fedobp-0", "fedobp-low", "local"):
        (tmp_path / "runs" / name).symlink_to(runs / name)
    cells = [
        {"method": label, "column": "", "seed": 0, "id": "", "metric": column, "directory": name}
        for label, column, name in (("Ours", "all_acc_before", "fedobp-0"), ("Alone", "all_acc_after", "local"))
    ]
    rows = [{"cells": ["Ours", "before", "81.2 ± 0.5"], "value": 2, "rank": 1, "marks": []},
            {"cells": ["Alone", "after", "70.0"], "value": 2, "rank": None, "marks": ["a"]}]  # fmt: skip
    said = [{"column": "", "lines": ["Better than Alone: Ours."]}]
    table = {"caption": "Reported: `all_acc_before` < 1.", "header": ["method", "reported", "accuracy in %"],
             "rows": rows, "notes": {"a": "other moment"}, "verdicts": said}  # fmt: skip
    (tmp_path / "comparison.json").write_text(json.dumps({"name": "toy", "cells": cells, "table": table}))
    page = report(tmp_path / "page", tmp_path)
    text = (tmp_path / "page/report.html").read_text()
    assert "Comparison toy" in page.words
    assert '<span class="rank1">81.2 ± 0.5</span>' in text
    assert '<span class="rankNone">70.0</span> <sup>a</sup>' in text
    assert "Reported: <code>all_acc_before</code> &lt; 1." in text
    assert "a other moment" in page.words
    assert "Better than Alone: Ours." in page.words
    assert "all_acc_after" in page.words
    assert "fedobp-low" not in page.words


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--metric", "all_f1_before"], "metric: {run} has no column all_f1_before; use one of"),
        (["--tensors", "net.tail"], "tensors: net.tail is not in the model; use some of net."),
        (["--clients", "9"], "clients: 9 is not a client; use numbers from 0 to 3"),
        (["--layer", "net.tail"], "layer: 'net.tail' is not in the model; use one of net."),
        (["--memory", "Omega"], "memory: clients of {run} have no tensor Omega"),
    ],
)
def test_mistakes(words: list[str], line: str, runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(runs / "fedpurin"), *words, "--out", str(tmp_path / "page")])
    assert end.value.code == 2
    assert capfd.readouterr().err.startswith("pfl-report: error: " + line.format(run=runs / "fedpurin"))
    assert not (tmp_path / "page").exists()


def test_a_table_of_published_cells_has_no_runs_to_draw(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps({"name": "toy", "cells": [], "table": {}}))
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path)])
    assert end.value.code == 2
    assert f"run: the table in {tmp_path} was made from published cells alone" in capfd.readouterr().err


def test_a_page_says_when_evaluations_test_a_sample(runs: Path) -> None:
    whole = read_run(runs / "local")
    some = replace(whole, metrics=whole.metrics | {"all_clients": [2.0] * len(whole.metrics["round"])})
    texts = []
    for run in (whole, some):
        groups = group_runs([run])
        shown = reported([run])
        captions = [drawn.caption for drawn in figures_of_run(run, shown, Wishes())]
        texts.append(pages.page(groups, shown, []) + " ".join(captions))
    assert "mean over all clients" in texts[0]
    assert "drawn once" not in texts[0]
    sample = f"2 of {whole.num_clients} clients"
    assert f"Evaluations of Local test {sample}, drawn once from the run&#39;s seed" in texts[1]
    assert f"mean over {sample}" in texts[1]
