"""The tool that makes errors: which it makes, that each is one, and which tests it runs for a file."""

from __future__ import annotations

import ast

import pytest

from tools.mutants.deliberate import ERRORS
from tools.mutants.operators import Mutant, count, mutant, mutated
from tools.mutants.report import write_report
from tools.mutants.targets import CODE, files, target_of

SOURCE = '''
from foundation import require

LIMIT: int = 3


def step(x: int, low: bool = True) -> int:
    """Text."""
    require(x > 0, "x", x, "a number above 0")
    with frozen(x), other():
        x += 1
    if x < 2 and low:
        return max(x - 1, key=len)
    raise ValueError(f"{x + 1}")
'''


def mutants(source: str) -> list[Mutant]:
    return [mutant("step.py", source, number) for number in range(count(source))]


def test_each_mutant_is_one_error_in_the_source():
    found = mutants(SOURCE)
    sources = [mutated(SOURCE, mutant.number) for mutant in found]
    plain = ast.unparse(ast.parse(SOURCE))
    assert len(set(sources)) == len({m.key for m in found}) == len(found)
    for source in sources:
        changed = [pair for pair in zip(plain.split("\n"), source.split("\n"), strict=True) if pair[0] != pair[1]]
        assert len(changed) == 1
    assert {(m.what, m.after) for m in found} == {
        ("constant", "def step(x: int, low: bool=False) -> int:"),
        ("statement dropped", "pass"),
        ("context dropped", "with other():"),
        ("context dropped", "with frozen(x):"),
        ("operator", "x -= 1"),
        ("constant", "x += 2"),
        ("operator", "if x < 2 or low:"),
        ("comparison", "if x <= 2 and low:"),
        ("comparison", "if x >= 2 and low:"),
        ("constant", "if x < 4 and low:"),
        ("condition", "if not (x < 2 and low):"),
        ("name", "return min(x - 1, key=len)"),
        ("argument dropped", "return max(x - 1)"),
        ("operator", "return max(x + 1, key=len)"),
        ("constant", "return max(x - 2, key=len)"),
    }
    assert {m.place for m in found} == {"step"}


def test_a_mutants_name_does_not_depend_on_its_line():
    one, other = (mutants(source) for source in (SOURCE, "import os\n" + SOURCE))
    assert [m.key for m in one] == [m.key for m in other]
    assert [m.line + 1 for m in one] == [m.line for m in other]


def test_a_method_has_its_tests_and_a_part_those_of_its_methods():
    assert target_of("fedpac.py") == (["test_fedpac.py"], ["FedPAC"])
    assert target_of("flocoplus.py") == (["test_floco.py"], ["FlocoPlus"])
    own, classes = target_of("parts/head_weights.py")
    assert (own, classes) == (["test_fedpac.py"], ["FedPAC"])
    assert target_of("lpproj.py").own == ["test_lpproj.py", "test_numpy_rounds.py"]
    assert {"test_fedpac.py", "test_flute.py", "test_knnper.py"} <= set(target_of("parts/features.py").own)


@pytest.mark.parametrize("file", files())
def test_every_file_has_tests(file):
    assert target_of(file).own


def test_deliberate_errors_still_fit_the_files():
    misfits = [e.name for e in ERRORS if e.make((CODE / e.file).read_text()) is None]
    assert not misfits, "rewrite these entries of tools/mutants/deliberate.py"


def test_the_report_names_survivors(tmp_path):
    rows = [
        {"file": "a.py", "status": "killed"},
        {
            "file": "a.py",
            "status": "survived",
            "line": 3,
            "place": "f",
            "what": "operator",
            "before": "x+1",
            "after": "x-1",
        },
        {"file": "b.py", "status": "survived", "name": "the sign is wrong"},
    ]
    write_report(tmp_path / "report.md", rows)
    text = (tmp_path / "report.md").read_text()
    assert "| a.py | 2 | 1 | 0 | 1 |" in text
    assert "| **all** | 3 | 1 | 0 | 2 |" in text
    assert "- line 3, `f`, operator: `x+1` → `x-1`" in text
    assert "- the sign is wrong" in text
