"""The hooks of the site: links between pages survive, and every key of a config is on its page."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from pfl_lightning.cli.classes import offered
from pfl_lightning.cli.parser import GROUPS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return runpy.run_path(str(ROOT / "tools/docs/site_hooks.py"))


def test_only_links_that_leave_the_site_become_plain_text(hooks):
    text = "[Learn](../learn/vocabulary.md#mask) [loop](../../pfl_lightning/loop.py)"
    assert hooks["inside_links"](text, "start") == "[Learn](../learn/vocabulary.md#mask) loop"
    assert hooks["inside_links"]("[loop](../pfl_lightning/loop.py)", "") == "loop"


def test_formulas_become_mathml(hooks):
    pytest.importorskip("latex2mathml")
    shown = hooks["rendered_formulas"]("```math\nw \\leftarrow 1\n```\n\n```python\nx\n```\n")
    assert shown.startswith('<div class="formula"><math')
    assert "```python" in shown
    with pytest.raises(ValueError, match="cannot show this formula"):
        hooks["rendered_formulas"]("```math\n\\nosuchcommand x\n```\n")
    page = (ROOT / "docs/algorithms.md").read_text()
    assert "<math" in hooks["rendered_formulas"](page)


def test_a_list_after_a_line_of_text_is_a_list(hooks):
    assert hooks["spaced_lists"]("Options:\n- a\n- b\n") == "Options:\n\n- a\n- b\n"
    assert hooks["spaced_lists"]("```\nx\n- a\n```\n") == "```\nx\n- a\n```\n"


def test_every_key_of_a_config_is_on_the_page_of_settings(hooks):
    page = hooks["settings_page"]()
    for group, config in GROUPS.items():
        for name in config.__dataclass_fields__:
            assert f"**`{group}.{name}`**" in page
    for key in ("algorithm", "task", "task.net", "data", "data.partition", "callbacks"):
        for name in offered(key):
            assert f"\n### {name}\n" in page
    assert "**`algorithm.quantile`** = `0.9999`" in page
    assert "**`task.optimizer.lr`**" in page
    assert "*some of Lambda | rho | eta | gamma | theta | p, in brackets*" in page
    assert "][" not in page  # Markdown would take it for a link


def test_every_command_is_on_the_page_of_commands(hooks, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # the hook sets its own
    page = hooks["commands_page"]()
    for command in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]:
        assert f"## {command}\n\n```text\nusage: {command} " in page
    assert "\nmake test-slurm" in page
    assert not [line for line in page.splitlines() if len(line) > 100]  # a terminal would break it


def test_the_site_loads_nothing_from_the_network():
    """Without its own copy of the shim, material's search of pages on disk asks unpkg.com for it."""
    text = (ROOT / "mkdocs.yml").read_text()
    assert "polyfills: [iframe-worker.js]" in text
    assert (ROOT / "docs/iframe-worker.js").is_file()
    assert "https://" not in text


def test_version_changelog_and_citation_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert f"## [{version}] - {citation['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
