"""Errors that a command prints as one line, without a traceback."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot work. The message names the key and the allowed values."""

    exit_code = 2
    collective = True
    """True if all ranks raise the same error, so only rank 0 reports it."""


class RunError(RuntimeError):
    """A run that cannot go on, for example because the disk is full."""

    exit_code = 1
    collective = False


class DivergedError(RunError):
    """A client whose upload is not finite or out of range. All ranks know about it."""

    collective = True


class AlgorithmError(RunError):
    """An algorithm breaks a rule of the loop. Most ranks notice it, each by itself, and one of them reports it."""


class LostRankError(RunError):
    """A rank that has ended or does not answer, as seen by the other ranks.

    Args:
        message: which rank, and when.
        quiet: True if another process reports it.
    """

    def __init__(self, message: str, quiet: bool = False) -> None:
        super().__init__(message)
        self.quiet = quiet


class UnexpectedError(RunError):
    """Any other exception: a mistake in a user's class, an error raised by torch, or a bug in this package.

    The original exception is its `__cause__`.
    """


class StopRound(BaseException):
    """The ranks have agreed to abandon the current round because one of them was asked to stop.

    Derives from BaseException so that `except Exception` cannot swallow it.
    """


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise a `ConfigError` with the key, its value and the allowed values, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key}: {value!r} is not allowed; use {allowed}")
