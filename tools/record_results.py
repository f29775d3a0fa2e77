"""Record the results of short runs, which tests/test_recorded_results.py compares with: NAME … or all.

python tools/record_results.py fedobp_fashion10k
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers import recorded

if __name__ == "__main__":
    recorded.record(sys.argv[1:] or recorded.names())
