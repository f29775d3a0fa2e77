"""Words about methods follow from the paired comparison."""

from __future__ import annotations

from dataclasses import replace

from pfl_lightning.compare.questions import Answers
from pfl_lightning.compare.statistics import Paired
from pfl_lightning.compare.verdict import verdicts


def answers(pairs: list[tuple[str, str, float, float]], higher: bool = True) -> Answers:
    comparisons = tuple((m, o, Paired(d, d - 0.1, d + 0.1, p, 9), p) for m, o, d, p in pairs)
    return Answers("", (), (), ("Local", "FedAvg", "itself alone"), comparisons, higher=higher)


def test_methods_with_the_same_outcome_share_a_line():
    found = verdicts(answers([
        ("A", "Local", 3.0, 0.2), ("A", "FedAvg", -2.0, 0.01),
        ("B", "Local", 3.0, 0.001), ("B", "FedAvg", 1.0, 0.049), ("B", "itself alone", 0.0, 0.05),
        ("C", "Local", 5.0, 0.3), ("C", "FedAvg", -1.0, 0.0),
        ("FedAvg", "Local", 1.0, 0.0), ("B, alone", "Local", 1.0, 0.0),
    ]))  # fmt: skip
    assert found == [
        "Better than Local and FedAvg, not clearly different from itself alone: B.",
        "Not clearly different from Local, worse than FedAvg: A, C.",
    ]


def test_ranks_and_means_must_agree():
    """Many small losses and a few large gains: a small p, and a mean that says nothing."""
    comparisons = (("A", "Local", Paired(0.5, -1.0, 2.0, 0.001, 9), 0.001),)
    assert verdicts(replace(answers([]), comparisons=comparisons)) == ["Not clearly different from Local: A."]


def test_where_lower_is_better_a_negative_difference_is_better():
    assert verdicts(answers([("A", "Local", -3.0, 0.01)], higher=False)) == ["Better than Local: A."]


def test_the_best_method_has_a_verdict_too():
    """It is a reference for the others, but no control."""
    found = replace(answers([("A", "Local", 3.0, 0.01), ("B", "A", -1.0, 0.01)]), references=("Local", "A"))
    assert verdicts(found) == ["Better than Local: A.", "Worse than A: B."]


def test_a_method_keeps_its_marks():
    assert verdicts(answers([("A", "Local", 3.0, 0.01)]), {"A": "A <sup>b</sup>"}) == [
        "Better than Local: A <sup>b</sup>."
    ]
