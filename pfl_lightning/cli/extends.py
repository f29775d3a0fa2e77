"""Config files: `extends: other.yaml` reads another file first, so shared settings are written once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.shipped import find_config, similar_config

MERGE = "<<"
"""The key by which YAML merges mappings. It may be repeated."""


class _Loader(yaml.SafeLoader):
    """Reads `1e-3` as a number, as the parser does, and refuses a key that appears twice.

    Plain YAML 1.1 takes `1e-3` for text. PyYAML would use the last of two equal keys and forget the first in silence.
    """

    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != MERGE):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} appears twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def config_name(argv: list[str]) -> str | None:
    """The name of the last config file, without its suffix."""
    paths = [path for _, path in options(argv) if path]
    return Path(paths[-1]).stem if paths else None


def options(argv: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the words of a command line. `--config FILE` and `--config=FILE` come as one pair."""
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option != "--config":
            yield word, None
            continue
        path = value if equals else next(words, "")
        if not path:
            raise ConfigError("config: the file name is missing; use --config FILE.yaml")
        yield option, path


def config_files(path: Path) -> list[dict[str, Any]]:
    """The contents of a config file and of all files it extends, the most general one first.

    Args:
        path: the file, or the name of a config of the package.
    """
    return [content for _, content in _with_extended(find_config(path))]


def config_paths(path: Path) -> list[Path]:
    """A config file and all files it extends, the most general one first."""
    return [path for path, _ in _with_extended(find_config(path))]


def _with_extended(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    if path.resolve() in above:
        raise ConfigError(f"extends: {path} extends itself, by way of {' → '.join(p.name for p in above)}")
    content = read(path)
    parent = content.pop("extends", None)
    if parent is None:
        return [(path, content)]
    base = path.parent / str(parent)
    if not base.is_file():
        base = find_config(Path(str(parent)))
    if not base.is_file():
        raise ConfigError(f"extends: {path} names {parent}, but there is no file {path.parent / str(parent)}")
    return [*_with_extended(base, (*above, path.resolve())), (path, content)]


def read(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the name
        reason = "it is not a text file" if isinstance(error, UnicodeDecodeError) else _reason(error)
        hint = f"; {similar_config(path)}" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"config: cannot read {path}: {reason}{hint}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """The keys and values of YAML text. `name` is the file it comes from, for errors."""
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2020-13-45
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"config: {name} is not valid YAML{line}: {reason}") from error
    if content is None:
        raise ConfigError(f"config: {name} is empty; write keys and values, such as `algorithm: FedAvg`")
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"config: {name} must hold keys and values, such as `algorithm: FedAvg`")
    return content


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
