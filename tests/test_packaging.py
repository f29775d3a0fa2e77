"""The package that users install: its configs, and its page on a package index."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADDRESS = "https://example.org/someone/pfl_lightning"


def test_the_package_contains_every_config():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "pfl_lightning"
    packed = {path for pattern in settings["package-data"]["pfl_lightning"] for path in package.glob(pattern)}
    # a link to a folder is followed only where a pattern names it
    names = {str(path.relative_to(package)) for path in packed}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml")} <= names
    assert {"pfl_fit.sbatch", "py.typed", "cli/help.txt"} <= names


def test_pictures_and_links_work_on_a_package_index(monkeypatch):
    setup = runpy.run_path(str(ROOT / "setup.py"))
    monkeypatch.setenv("PFL_REPOSITORY", f"{ADDRESS}.git".replace("https://", "https://me:secret@"))
    facts = setup["describe"](setup["find_address"]())
    text = facts["long_description"]
    assert f"![A page of pfl-report]({ADDRESS}/raw/main/docs/report_page.png)" in text
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 20
    for target in targets:
        assert target.startswith("https://")
        if target.startswith(ADDRESS):
            file = target.removeprefix(f"{ADDRESS}/blob/main/").removeprefix(f"{ADDRESS}/raw/main/")
            assert (ROOT / file.partition("#")[0]).exists()
    assert facts["project_urls"]["Repository"] == ADDRESS


def test_without_an_address_the_readme_stays_as_it_is():
    facts = runpy.run_path(str(ROOT / "setup.py"))["describe"](None)
    assert facts["long_description"] == (ROOT / "README.md").read_text()
    assert facts["project_urls"] == {}
