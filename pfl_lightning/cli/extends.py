"""`extends: other.yaml` in a config: the named file is read first, so that shared settings are written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pfl_lightning.errors import ConfigError


def expand(argv: list[str]) -> list[str]:
    """Put what a `--config` file extends before it. A file that extends another is given as its text."""
    expanded: list[str] = []
    for option, path in options(argv):
        if path is None:
            expanded.append(option)
            continue
        for file, content in chain(Path(path)):
            text = str(file) if content.pop("extends", None) is None else yaml.safe_dump(content)
            expanded += ["--config", text]
    return expanded


def config_name(argv: list[str]) -> str | None:
    """The name of the last config file, without its ending."""
    paths = [path for _, path in options(argv) if path]
    return Path(paths[-1]).stem if paths else None


def options(argv: list[str]) -> Iterator[tuple[str, str | None]]:
    """The words of a command line; `--config FILE` and `--config=FILE` come as one pair."""
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option != "--config":
            yield word, None
            continue
        path = value if equals else next(words, "")
        if not path:
            raise ConfigError("config: no file is named; use --config FILE.yaml")
        yield option, path


def chain(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """A config file and its content, after all that it extends."""
    if path.resolve() in above:
        raise ConfigError(f"extends: {path} extends itself, by way of {' → '.join(p.name for p in above)}")
    content = read(path)
    parent = content.get("extends")
    if parent is None:
        return [(path, content)]
    base = path.parent / str(parent)
    if not base.is_file():
        raise ConfigError(f"extends: {path} names {parent}, but there is no file {base}")
    return [*chain(base, (*above, path.resolve())), (path, content)]


def read(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config: {path} is not a text file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"config: {path} is not valid YAML{line}: {getattr(error, 'problem', error)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config: {path} must hold keys and values, such as `seed: 0`")
    return content
