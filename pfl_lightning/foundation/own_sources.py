"""The files behind a user's own class and behind other names in a config, which may mean something else tomorrow."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

LIBRARIES = tuple(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def source_digest(name: str) -> str | None:
    """SHA-256 of the file that defines a class, and of the files beside it that this file imports from.

    Args:
        name: of the class, such as `mine.Method`. Its module has been imported. Or the path of any other file.

    Returns:
        None for a class of an installed package, of `pfl_lightning`, or of a module not imported, and for no file.
    """
    if Path(name).is_file():
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    module = _module(name)
    path = _file(module)
    if module is None or path is None:
        return None
    home = path.parents[module.__name__.count(".") + (path.name == "__init__.py")]
    files: dict[str, Path] = {}
    _collect(module, home, files)
    digest = hashlib.sha256()
    for own, file in sorted(files.items()):
        digest.update(f"{own}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest() if files else None


def _collect(module: ModuleType, home: Path, files: dict[str, Path]) -> None:
    path = _file(module)
    if path is None or module.__name__ in files or not path.is_relative_to(home):
        return
    files[module.__name__] = path
    for value in list(vars(module).values()):
        other = value if isinstance(value, ModuleType) else sys.modules.get(str(getattr(value, "__module__", "")))
        if isinstance(other, ModuleType):
            _collect(other, home, files)


def _module(name: str) -> ModuleType | None:
    """The module of a class, which may be inside of another class."""
    while name := name.rpartition(".")[0]:
        if name in sys.modules:
            return sys.modules[name]
    return None


def _file(module: ModuleType | None) -> Path | None:
    """The source file of a module. None for libraries and for modules without one."""
    name, text = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if not text or name.partition(".")[0] == "pfl_lightning":
        return None
    path = Path(text).resolve()
    in_library = {"site-packages", "dist-packages"} & set(path.parts) or any(map(path.is_relative_to, LIBRARIES))
    return None if in_library or path.suffix != ".py" or not path.is_file() else path
