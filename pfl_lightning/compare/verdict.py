"""The paired comparison of each method in words, and nothing beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pfl_lightning.compare.questions import REFERENCES, Answers

LEVEL = 0.05
"""p-values above it are no evidence of a difference."""
CAPTION = (
    f"**What the controls say{{place}}.** A method counts as better or worse than another row if p < {LEVEL} in the "
    "paired comparison and the interval does not contain 0. Otherwise the difference is not clear. Controls have the "
    "method's own net, where there is such a row."
)


def verdicts(answers: Answers, shown: Mapping[str, str] | None = None) -> list[str]:
    """One line for all methods with the same outcome against the references, the most successful first.

    Args:
        answers: with the paired comparison.
        shown: method → its name as the text shows it.
    """
    outcomes: dict[str, dict[str, str]] = {}
    for method, other, result, p in answers.comparisons:
        if method not in REFERENCES and not method.endswith(", alone"):
            better = (result.difference > 0) == answers.higher
            clear = p < LEVEL and not result.low <= 0 <= result.high  # ranks and means may disagree
            outcomes.setdefault(method, {})[other] = ("better" if better else "worse") if clear else "unclear"
    groups: dict[str, list[str]] = {}
    for method in sorted(outcomes, key=lambda one: _rank(list(outcomes[one].values()))):
        groups.setdefault(_words(outcomes[method]), []).append((shown or {}).get(method, method))
    return [f"{words}: {', '.join(methods)}." for words, methods in groups.items()]


def _words(found: dict[str, str]) -> str:
    parts = []
    for verdict, phrase in (
        ("better", "better than"),
        ("unclear", "not clearly different from"),
        ("worse", "worse than"),
    ):
        others = [other for other, its in found.items() if its == verdict]
        if others:
            parts.append(f"{phrase} {_list(others)}")
    text = ", ".join(parts)
    return text[:1].upper() + text[1:]


def _rank(found: Sequence[str]) -> tuple[int, int]:
    return -found.count("better"), found.count("worse")


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
