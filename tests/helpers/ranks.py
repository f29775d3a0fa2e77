"""Functions on several CPU ranks, which are part of the package."""

from pfl_lightning.testing.ranks import run_on_ranks

__all__ = ["run_on_ranks"]
