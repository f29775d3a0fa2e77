"""An exception in one line: the code that raised it and the cause."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import CodeType

import pfl_lightning

LONGEST = 400
"""Characters of a message. Some of torch's are pages long."""
PACKAGE = Path(pfl_lightning.__file__).parent
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def describe(error: BaseException) -> str:
    """Say where an exception comes from and why: `Mine.aggregate (mine.py, line 12): KeyError: 'step'`.

    The place is the innermost line of the user's own code, or else of this package.
    """
    place = _place(error)
    cause = f"{type(error).__name__}: {message}" if (message := _message(error)) else type(error).__name__
    return f"{place}: {cause}" if place else cause


def _place(error: BaseException) -> str:
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    del frames[:1]  # the code that caught the exception
    inner = [(code, line) for code, line in reversed(frames) if not _in_library(code)]
    own = next(((code, line) for code, line in inner if not _in_package(code)), None)
    code, line = own or next(iter(inner), (None, 0))
    if code is None:
        return ""
    path = Path(code.co_filename)
    name = path.relative_to(PACKAGE.parent) if _in_package(code) else path.name
    where = f"{name}, line {line}"
    return where if code.co_qualname.startswith("<") else f"{code.co_qualname} ({where})"


def _message(error: BaseException) -> str:
    """The first non-empty line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _in_package(code: CodeType) -> bool:
    return Path(code.co_filename).is_relative_to(PACKAGE)


def _in_library(code: CodeType) -> bool:
    """Whether code belongs to Python or to an installed package other than this one."""
    if code.co_filename.startswith("<"):
        return True
    elsewhere = {"site-packages", "dist-packages"} & set(Path(code.co_filename).parts)
    return (bool(elsewhere) or code.co_filename.startswith(LIBRARIES)) and not _in_package(code)
