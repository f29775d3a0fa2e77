"""What can go wrong for a person, told in one line and without a traceback."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot work. The message names the key and what is allowed."""

    exit_code = 2
    collective = True
    """Whether every rank meets the error alike, so that one of them says it."""


class RunError(RuntimeError):
    """A run that cannot go on, such as a full disk."""

    exit_code = 1
    collective = False


class DivergedError(RunError):
    """A client whose upload is not finite or out of range; the ranks have told each other."""

    collective = True


class LostRankError(RunError):
    """A rank that ended or does not answer, as the others see it.

    Args:
        message: who, and when.
        quiet: another process says it already.
    """

    def __init__(self, message: str, quiet: bool = False) -> None:
        super().__init__(message)
        self.quiet = quiet


class StopRound(BaseException):
    """The ranks have agreed to give the present round up, since one of them was asked to stop.

    No `Exception`, so that nothing on its way takes it for a failure.
    """


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise a `ConfigError` that names `key`, the value it has and what is allowed, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key}: {value!r} is not allowed; use {allowed}")
