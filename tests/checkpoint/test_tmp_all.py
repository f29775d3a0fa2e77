import pytest
from tests.checkpoint.test_stop import disturbed, SETTINGS
from tests.algorithms.test_contract import ALGORITHMS, name
from tests.toy import fingerprint, toy_summary


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_all(algorithm):
    summary, stops = disturbed(2, algorithm, 1, [2, 9, 23, 40, 60])
    assert stops >= 1
    assert fingerprint(summary) == fingerprint(toy_summary(1, algorithm, **SETTINGS))
