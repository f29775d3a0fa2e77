"""The table: ranks, marks, the paper's values, and the three formats."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.csv_table import csv_table
from pfl_lightning.compare.latex import escape, latex
from pfl_lightning.compare.likeness import Outcome, differences
from pfl_lightning.compare.markdown import markdown
from pfl_lightning.compare.measurement import measure
from pfl_lightning.compare.output import check_page, write_page
from pfl_lightning.compare.page_table import page_table
from pfl_lightning.compare.questions import answer
from pfl_lightning.compare.run_facts import RunFacts
from pfl_lightning.compare.table import build_table
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.comparisons import ToyResolver, experiment

SAMPLES = {"slow": 200.0}
"""Samples per round of methods that train more than the others."""


def outcomes(made, values, clients=None):
    """Outcomes with given values: (method, column) → one per seed."""
    stage = Comparison(made, ToyResolver()).stage({})
    result = []
    for entry in stage.entries:
        measured = []
        for cell, value in zip(entry.cells, values.get((entry.method, entry.column), []), strict=False):
            samples = SAMPLES.get(entry.method, 100.0)
            rounds = [
                {"round": r, "samples": samples, "up_bytes": 2**20, "down_bytes": 2**20,
                 entry.metric.column: value - 0.1 * (cell.rounds - r)}
                for r in range(1, cell.rounds + 1)
            ]  # fmt: skip
            own = {entry.metric.column: {cell.rounds: np.array(clients[entry.method])}} if clients else {}
            measured.append(measure(cell, Path("run"), RunFacts({}, rounds, own, "p"), entry.metric))
        result.append(Outcome(entry, tuple(measured)))
    return result


def places(made, values):
    table = build_table(made, outcomes(made, values))
    return {
        (row.method, c): place for row in table.rows for c, place in zip(table.columns, row.places, strict=True)
    }, table


THREE = {"methods": ["FedAvg", "FedOBP", "Ditto"], "controls": [], "seeds": [0, 1]}


def test_means_deviations_and_ranks():
    found, _ = places(
        experiment(**THREE), {("FedAvg", ""): [0.5, 0.6], ("FedOBP", ""): [0.8, 0.8], ("Ditto", ""): [0.7, 0.7]}
    )
    assert found["FedAvg", ""].text == "55.0 ± 7.1"
    assert [found[m, ""].rank for m in ("FedAvg", "FedOBP", "Ditto")] == [3, 1, 2]


def test_lower_is_better_where_the_task_says_so():
    made = experiment(**THREE, report={"metric": "all_loss_before"})
    found, _ = places(made, {("FedAvg", ""): [0.5, 0.6], ("FedOBP", ""): [0.8, 0.8], ("Ditto", ""): [0.7, 0.7]})
    assert [found[m, ""].rank for m in ("FedAvg", "FedOBP", "Ditto")] == [1, 3, 2]


def test_equal_means_share_a_rank_and_missing_ones_have_none():
    found, table = places(
        experiment(**THREE), {("FedAvg", ""): [0.5, 0.5], ("FedOBP", ""): [0.5, 0.5], ("Ditto", ""): [0.7]}
    )
    assert [found[m, ""].rank for m in ("FedAvg", "FedOBP", "Ditto")] == [1, 1, None]
    assert table.notes == {"a": "incomplete: seed 0 of 0, 1"}
    assert found["Ditto", ""].marks == ("a",)


def test_means_that_look_equal_share_a_rank():
    """Bold 55.0 beside underlined 55.0 would claim a difference that the table does not show."""
    found, _ = places(
        experiment(**THREE), {("FedAvg", ""): [0.5501] * 2, ("FedOBP", ""): [0.5502] * 2, ("Ditto", ""): [0.549] * 2}
    )
    assert [found[m, ""].rank for m in ("FedAvg", "FedOBP", "Ditto")] == [1, 1, 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loop.rounds": 9}, "loop.rounds 9 instead of 4"),
        ({"data.alpha": 0.9}, "data.alpha 0.9 instead of 0.3"),
        ({"task.net": {"class_path": "toy.ResNet8"}}, "task.net ResNet8 instead of CNN"),
        ({"loop.local_epochs": 1}, "loop.local_epochs 1 instead of 5"),
        ({"loop.batch_size": 5}, "loop.batch_size 5 instead of 10"),
        ({"loop.participation": 0.4}, "loop.participation 0.4 instead of 0.2"),
        ({"report": {"metric": "all_acc_after"}}, "reported all_acc_after instead of all_acc_before"),
        ({"report": {"select": "best"}}, "selected best instead of last"),
    ],
)
def test_unlike_entries_are_marked_and_not_ranked(settings, words):
    made = experiment(methods={"FedAvg": None, "FedOBP": None, "odd": {"algorithm": "FedOBP", **settings}}, controls=[])
    found, table = places(made, {("FedAvg", ""): [0.5], ("FedOBP", ""): [0.6], ("odd", ""): [0.9]})
    assert found["odd", ""].rank is None
    assert words in table.notes[found["odd", ""].marks[0]]
    assert (found["FedAvg", ""].rank, found["FedOBP", ""].rank) == (2, 1)
    assert found["FedAvg", ""].marks == ()


def test_the_optimizer_is_the_method_s_own_affair():
    made = experiment(methods={"FedAvg": {"task.optimizer": {"lr": 9}}, "FedOBP": None}, controls=[])
    found, _ = places(made, {("FedAvg", ""): [0.5], ("FedOBP", ""): [0.6]})
    assert found["FedAvg", ""].rank == 2


def test_more_gradient_steps_are_marked():
    made = experiment(methods={"FedAvg": None, "FedOBP": None, "slow": {"algorithm": "Ditto"}}, controls=[])
    column = outcomes(made, {("FedAvg", ""): [0.5], ("FedOBP", ""): [0.6], ("slow", ""): [0.9]})
    assert differences(column) == ["", "", "10.0 gradient steps per visit instead of 5.0"]


def outcomes_with_work(works):
    """Rows of FedAvg whose two seeds have these samples and visits of the clients: label → one pair per seed."""
    made = experiment(methods={label: {"algorithm": "FedAvg"} for label in works}, controls=[], seeds=[0, 1])
    result = []
    for entry in Comparison(made, ToyResolver()).stage({}).entries:
        measured = []
        for cell, (samples, visited) in zip(entry.cells, works[entry.method], strict=True):
            table = {"samples": {4: np.array(samples)}, "visits": {4: np.array(visited)}}
            rounds = [{"round": 4, "samples": 1.0, entry.metric.column: 0.5}]
            facts = RunFacts({}, rounds, table, "p", train_sizes=np.array([20.0, 90.0]))
            measured.append(measure(cell, Path("run"), facts, entry.metric))
        result.append(Outcome(entry, tuple(measured)))
    return result


def test_other_clients_are_no_other_work():
    """Both rows make five passes at a visit. The second one has drawn the large client more often."""
    usual, other = ([100.0, 900.0], [1.0, 2.0]), ([0.0, 1350.0], [0.0, 3.0])
    column = outcomes_with_work({"a": [usual, usual], "b": [usual, usual], "c": [usual, other]})
    assert column[2].measurements[1].steps_per_visit > 1.1 * column[0].measurements[1].steps_per_visit
    assert differences(column) == ["", "", ""]


def test_more_visits_are_marked():
    """A method that visits every client once more, in the same number of rounds."""
    usual, more = ([100.0, 900.0], [1.0, 2.0]), ([200.0, 1350.0], [2.0, 3.0])
    column = outcomes_with_work({"a": [usual, usual], "b": [usual, usual], "c": [more, more]})
    assert differences(column) == ["", "", "5 visits instead of 3"]
    twice = ([200.0, 1800.0], [1.0, 2.0])
    column = outcomes_with_work({"a": [usual, usual], "b": [usual, usual], "c": [twice, twice]})
    assert differences(column) == ["", "", "66.7 gradient steps per visit instead of 33.3"]


def test_footnotes_go_on_after_z():
    methods = {f"m{n}": {"algorithm": "FedAvg", "loop.batch_size": 100 + n} for n in range(30)}
    made = experiment(methods={"FedAvg": None, "FedOBP": None, **methods}, controls=[])
    _, table = places(made, {})
    assert list(table.notes)[24:28] == ["y", "z", "aa", "ab"]


def full_table():
    made = experiment(
        methods={"FedAvg": None, "FedOBP": None, "odd_one": {"algorithm": "FedOBP", "loop.rounds": 9}},
        grid={"data.alpha": [0.1, 0.5]},
        seeds=[0, 1],
        controls=["Local"],
        paper={"FedOBP": {"alpha=0.1": "86.03 ± 0.20"}},
        caption="100 % real & true.",
    )
    values = {(m, c): [v, v + 0.01] for m, v in {"FedAvg": 0.5, "FedOBP": 0.6, "odd_one": 0.7, "Local": 0.4}.items()
              for c in ("alpha=0.1", "alpha=0.5")}  # fmt: skip
    clients = {"FedAvg": [0.2, 0.6] * 5, "FedOBP": [0.5, 0.9] * 5, "odd_one": [0.5] * 10, "Local": [0.3, 0.5] * 5}
    all_ = outcomes(made, values, clients)
    table = build_table(made, all_)
    return table, [answer(made, all_, label, ["FedOBP"]) for label in table.columns]


def test_markdown():
    text = markdown(*full_table())
    assert "| method | reported | alpha=0.1 | paper | alpha=0.5 |" in text
    assert "| FedOBP | before | **60.5 ± 0.7** | 86.03 ± 0.20 | **60.5 ± 0.7** |" in text
    assert "| FedAvg | before | <u>50.5 ± 0.7</u> |  | <u>50.5 ± 0.7</u> |" in text
    assert "| odd_one | before | 70.5 ± 0.7 <sup>a</sup> |  | 70.5 ± 0.7 <sup>a</sup> |" in text
    assert "| Local (control) | before | 40.5 ± 0.7 |" in text
    assert "<sup>a</sup> loop.rounds 9 instead of 4" in text
    assert "mean over all clients" in text
    assert "**Paired comparison at alpha=0.5.**" in text


def test_unlike_entries_are_marked_in_every_table():
    table, answers = full_table()
    text = markdown(table, answers)
    rows = [line for line in text.splitlines() if line.startswith("| odd_one")]
    assert len(rows) == 5  # the main table, clients and cost and the paired comparison in two columns
    assert all("<sup>a</sup>" in row for row in rows)
    assert text.count(": odd_one <sup>a</sup>.") == 2  # the verdict
    assert "FedAvg <sup>" not in text
    assert latex(table, answers).count(r"odd\_one$^{a}$") == 4
    for verdict in page_table(table, answers)["verdicts"]:
        assert any(line.endswith(": odd_one (a).") for line in verdict["lines"])


def test_only_columns_that_are_there_are_explained():
    table, answers = full_table()
    assert "To reach a value" in markdown(table, answers)
    few = [replace(a, questions=tuple(q for q in a.questions if q.key == "mib")) for a in answers]
    assert "To reach a value" not in markdown(table, few)
    assert "MiB sent:" in markdown(table, few)


def test_latex():
    text = latex(*full_table())
    assert r"\begin{tabular}{llrrr}" in text
    assert r"method & reported & alpha=0.1 & paper & alpha=0.5 \\" in text
    assert r"FedOBP & before & \textbf{60.5 $\pm$ 0.7} & 86.03 $\pm$ 0.20 & \textbf{60.5 $\pm$ 0.7} \\" in text
    assert r"odd\_one & before & 70.5 $\pm$ 0.7$^{a}$ &" in text
    assert r"100 \% real \& true." in text
    for word in ("toprule", "midrule", "bottomrule", "texttt{all\\_acc\\_before}"):
        assert f"\\{word}" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 5
    assert text.isascii()


def test_latex_escapes_everything():
    assert escape("a_b & 5 % #1 {x} ~ ^ \\ $ <>") == (
        r"a\_b \& 5 \% \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \$ \textless{}\textgreater{}"
    )


def test_latex_rows_may_begin_with_a_bracket_or_a_star():
    """After a line break LaTeX takes them for an argument of the break."""
    assert (escape("[ours]"), escape("*x"), escape("≥ η")) == ("{[}ours]", "{*}x", r"$\geq$ $\eta$")
    assert escape("δ Λ λ σ μ") == r"$\delta$ $\Lambda$ $\lambda$ $\sigma$ $\mu$"


def test_latex_fits_the_width_of_the_text():
    """Titles and differences have several lines, and a table that is still too wide is shrunk."""
    text = latex(*full_table())
    assert text.count(r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%") == 5
    assert r"& \begin{tabular}[b]{@{}r@{}}worst \\ tenth\end{tabular} &" in text
    assert re.search(r"\\begin\{tabular\}\[t\]\{@\{\}r@\{\}\}\S+ \{\[\}\S+ \S+\] \\\\ p \S+ \S+\\end\{tabular\}", text)
    assert not re.search(r"[ ,\[}]-\d", text)  # a hyphen is no minus


def test_csv_has_all_numbers():
    rows = list(csv.DictReader(io.StringIO(csv_table(*full_table()))))
    assert len(rows) == 8
    row = next(row for row in rows if row["method"] == "FedOBP" and row["column"] == "alpha=0.1")
    assert float(row["mean"]) == pytest.approx(60.5)
    assert float(row["deviation"]) == pytest.approx(0.7071, abs=1e-4)
    assert (row["rank"], row["paper"]) == ("1", "86.03 ± 0.20")
    assert float(row["worse_than_local"]) == 0.0
    assert float(row["difference_Local"]) == pytest.approx(30.0)
    odd = next(row for row in rows if row["method"] == "odd_one")
    assert (odd["rank"], odd["notes"]) == ("", "loop.rounds 9 instead of 4")


def test_a_page_is_changed_between_its_marks_only(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- pfl-compare toy: begin -->\nold\n<!-- pfl-compare toy: end -->\nafter\n")
    check_page(page, "toy")
    for _ in range(2):
        write_page(page, "toy", "new\n")
    expected = "before\n<!-- pfl-compare toy: begin -->\n\nnew\n\n<!-- pfl-compare toy: end -->\nafter\n"
    assert page.read_text() == expected
    with pytest.raises(ConfigError, match="has no place for the table"):
        check_page(page, "other")


def test_the_caption_explains_every_word_of_the_column_reported():
    """Names of methods have commas in them, so a list of them would not be clear."""
    methods = {"FedAvg": None, "FedAvg, late": {"extends": "FedAvg", "report": {"metric": "all_acc_after"}}}
    made = experiment(methods=methods, controls=[])
    caption = build_table(made, outcomes(made, {})).caption
    assert "Reported (before): accuracy in % (`all_acc_before`) after the last round" in caption
    assert "Reported (after): accuracy in % (`all_acc_after`) after the last round" in caption
    assert "FedAvg" not in caption
