"""Where every random number comes from: one seed per purpose, derived from the run's seed."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *path: int | str) -> int:
    """A seed for one purpose, for example `derive_seed(7, "shuffle", round, client)`.

    It depends on its arguments only. It does not depend on the rank, the number of ranks or earlier draws.
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
