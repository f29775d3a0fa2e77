"""What the documents show must work."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pfl_lightning import algorithms
from pfl_lightning.cli.fit import run

ROOT = Path(__file__).parents[1]
GENERATED = {ROOT / "docs/reference/settings.md", ROOT / "docs/reference/commands.md"}
"""Pages that exist on the site only."""


def test_the_algorithm_of_the_guide_runs_from_its_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    guide = (ROOT / "docs/add_an_algorithm.md").read_text()
    python, yaml = re.search(r"```python\n(.*?)```", guide, re.S), re.search(r"```yaml\n(.*?)```", guide, re.S)
    assert python
    assert yaml
    assert len(python[1].strip().splitlines()) < 30
    (tmp_path / "trimmed_step.py").write_text(python[1])
    (tmp_path / "mine.yaml").write_text(yaml[1])
    words = (
        "--loop.rounds 2 --task.net MLP --task.net.hidden [4] --data.num_clients 10 --fabric.devices 2 --run_dir out"
    )
    assert run(["--config", "mine.yaml", *words.split()]) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["algorithm"] == "TrimmedStep"
    assert summary["personal_count"] == 4 * 10 + 10


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and (page.parent / target).resolve() not in GENERATED:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_links_into_a_page_lead_to_a_heading():
    """On GitHub. The strict build of the site checks them there."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            text = re.sub(r"^```.*?^```", "", (page.parent / target if target else page).read_text(), flags=re.M | re.S)
            titles = re.findall(r"^#+ (.+)$", text, re.M)
            known = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in known, f"{page.name}: {target}#{anchor}"


def test_every_method_has_a_formula_and_says_where_it_departs_from_its_paper():
    """AdaptiveQuantile and SoftMerge have no paper. A title may name a method as its paper writes it."""
    page = (ROOT / "docs/algorithms.md").read_text()
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.S | re.M))
    titles = {"FedAvgFT": "FedAvg", "FedProxFT": "FedProx", "Floco": "FLOCO", "FlocoPlus": "FLOCO+"}
    for name in algorithms.__all__:
        wanted = titles.get(name, name).lower()
        homes = [title for title in sections if wanted in re.split(r", | and ", title.lower().replace("-", ""))]
        assert len(homes) == 1, name
        ours = "Ours." in sections[homes[0]]
        assert ("**Decided.**" in sections[homes[0]]) is not ours, name
        assert "```math" in sections[homes[0]], name


def test_the_page_of_algorithms_has_short_sentences():
    assert ";" not in (ROOT / "docs/algorithms.md").read_text()


def test_the_numbers_of_the_readme_are_those_of_the_results():
    readme = (ROOT / "README.md").read_text().replace("&nbsp;", " ")
    rows = [line.strip("| ").split("|") for line in readme.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    (ours,) = (place for place, row in enumerate(cells) if row[0].startswith("ours"))
    short = (ROOT / "docs/results_papers.md").read_text().split("<!-- pfl-compare fedobp-table1-short: begin -->")[1]
    for method, shown, paper in zip(cells[ours - 2][1:], cells[ours][1:], cells[ours + 1][1:], strict=True):
        row = rf"^\| {re.escape(method)}(?: \(control\))? \| [^|]+ \| ([^|]*) \| ([^|]*) \|$"
        found = re.search(row, short, re.MULTILINE)
        assert found, method
        assert re.sub(r"<.*?>|\*", "", found[1]).split()[0] == shown, method
        assert found[2].strip() == paper, method
    results = (ROOT / "docs/results.md").read_text()
    in_words = re.findall(r"([\w+]+) (?:has )?(\d+\.\d ± \d\.\d)", readme)
    assert len(in_words) > 2
    for method, shown in in_words:
        found = re.search(rf"^\| {re.escape(method)} \| \w+ \| (\d[^|<*]*)", results, re.MULTILINE)
        assert found, method
        assert found[1].strip() == shown, method


def test_the_readme_names_every_method_once():
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| plain") : readme.index("| CIFAR-10")]
    named = [name for row in table.splitlines() if "Fed" in row for name in row.split("|")[2].strip().split(", ")]
    assert sorted(named) == sorted({*algorithms.__all__} - {"FedAvgFT", "FedProxFT"})
    assert f"Compare {len(named)} methods" in readme
