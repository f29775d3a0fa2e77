"""The toy federation, which is part of the package: `check_algorithm` uses it too."""

from pfl_lightning.testing.toy import (
    TEST_SIZE,
    TRAIN_SIZES,
    PlainNet,
    ToyData,
    ToyNet,
    disturbed_summary,
    fingerprint,
    interrupted_summary,
    toy_loop,
    toy_summary,
)

__all__ = [
    "TEST_SIZE",
    "TRAIN_SIZES",
    "PlainNet",
    "ToyData",
    "ToyNet",
    "disturbed_summary",
    "fingerprint",
    "interrupted_summary",
    "toy_loop",
    "toy_summary",
]
