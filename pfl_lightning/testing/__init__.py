"""Tests for methods that users write: `check_algorithm` runs the contract on one of them."""

from pfl_lightning.testing.contract import CHECKS, ContractError, check_algorithm

__all__ = ["CHECKS", "ContractError", "check_algorithm"]
