"""A few of the random mistakes that `tools/faults/throw_mistakes.py` throws by the hundred."""

from __future__ import annotations

import pytest

from tools.faults.throw_mistakes import Outcome, main, mistake_number

LINE = "pfl-fit: error: seed: -1 is not allowed\n"
RUN = ["out", "out/.lock", "out/config.yaml", "out/checkpoints", "out/checkpoints/round_1.safetensors"]


def test_random_mistakes_end_cleanly(capfd, monkeypatch):
    monkeypatch.setenv("PFL_DATA", "data")  # which the tool sets, and is unset again
    monkeypatch.setattr("sys.argv", ["throw_mistakes.py", "--count", "10", "--seed", "3"])
    with pytest.raises(SystemExit) as end:
        main()
    assert "10 mistakes, 0 ended badly" in capfd.readouterr().out
    assert end.value.code == 0


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome(0, "", "", RUN), None),
        (Outcome(1, "", LINE, RUN), None),
        (Outcome(2, "", LINE, []), None),
        (Outcome(1, "", f"/x/torch.py:3: UserWarning: hm\n  code()\n{LINE}", []), None),
        (Outcome(3, "", "", []), "exit code 3"),
        (Outcome(-11, "", "", []), "exit code -11"),
        (Outcome(1, "Traceback (most recent call last)", LINE, []), "traceback"),
        (Outcome(1, "", "", []), "0 lines on stderr"),
        (Outcome(2, "", LINE * 2, []), "2 lines on stderr"),
        (Outcome(2, "", LINE, RUN), f"left behind: {RUN}"),
        (Outcome(1, "", LINE, [*RUN, "out/.config.yaml.tmp"]), "temporary files: ['out/.config.yaml.tmp']"),
        (Outcome(1, "", LINE, [*RUN, "data/.lock"]), "outside of a run directory: ['data/.lock']"),
    ],
)
def test_what_is_found_wrong(outcome, problem):
    assert outcome.problems() == ([] if problem is None else [problem])


def test_a_number_always_means_the_same_mistake():
    drawn = [mistake_number(0, number) for number in range(10)]
    assert drawn == [mistake_number(0, number) for number in range(10)]
    assert len({str(mistake) for mistake in drawn}) == 10
