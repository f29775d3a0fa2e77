"""One clear line for each way to get a config wrong: the key, the mistake, and the allowed values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from pfl_lightning.cli.classes import BASES, closest, find_class, suggest
from pfl_lightning.foundation.shipped import shipped_configs


def explain(message: str, parser: ArgumentParser, flags: Callable[[], list[str]] = list) -> str:
    """Turn the parser's nested message into one line.

    Args:
        message: of the parser's exception.
        parser: knows the keys.
        flags: returns the options of the classes in use, for suggestions.
    """
    key = ".".join(re.findall(r'Parser key "([^"]+)"', message.partition("\n  - ")[0]))
    reason = " ".join(re.split(r'Parser key "[^"]+":', message)[-1].split())
    if match := re.search(r"Option '([^']+)' is not accepted\. Got value: Namespace\(class_path='([^']+)'", reason):
        return _no_such_option(key, match[1], match[2])
    reason = re.sub(r"\. Got value: Namespace\(.*", "", reason)  # the class around a value is of no interest
    return _wrong_key(key, reason, parser, flags) or _wrong_value(key, reason)


def _wrong_key(key: str, reason: str, parser: ArgumentParser, flags: Callable[[], list[str]]) -> str:
    place = f"{key}: " if key else ""
    if match := re.search(r"Problem with given class_path '([^']+)': Option '([^']+)' is not accepted", reason):
        return _no_such_option(key, match[2], match[1])
    if match := re.search(r"Group '([^']+)' does not accept option '([^']+)'", reason):
        allowed = [dest.partition(".")[2] for dest in _keys(parser) if dest.startswith(f"{match[1]}.")]
        return f"{match[1]}.{match[2]}: no such key; use {suggest(match[2], allowed)}"
    if match := re.search(r"unrecognized arguments: (\S+)", reason):
        return _unknown_option(match[1].split("=")[0], [*(f"--{key}" for key in _keys(parser)), *flags()])
    if match := re.search(r"(?:Option|Key) '([^']+)' is not (?:accepted|expected)", reason):
        top = dict.fromkeys(dest.partition(".")[0] for dest in _keys(parser))
        wrong = match[1] if match[1].partition(".")[0] in top else match[1].partition(".")[0]
        return f"{place}{wrong}: no such key; use {suggest(wrong, top)}"
    if re.search(r"NestedArg\(", reason):
        return f"{place}it has no settings of its own"
    return ""


def _wrong_value(key: str, reason: str) -> str:
    place = f"{key}: " if key else ""
    if match := re.search(r"following arguments are required: (.*)", reason):
        inner = f"{key}." if key and key != match[1].rpartition(".")[0] else ""
        return f"{inner}{match[1]}: missing; give it on the command line or in a --config file"
    if match := re.search(r"argument --(\S+): expected (?:one|at least one) argument", reason):
        return f"{match[1]}: the value is missing; use --{match[1]} VALUE"
    if match := re.search(r"Union subtypes Subtypes: \[(.*?)\] Errors:.*Given value: (.*)", reason):
        kinds = [kind for kind in match[1].split(", ") if "Tensor" not in kind]
        return f"{place}{match[2]!r} is not allowed; use {in_words(' or '.join(kinds))}"
    if match := re.search(r"Expected a (.*?)\. Got value: ?(.*)", reason):
        return f"{place}{match[2]!r} is not allowed; use {in_words(match[1])}"
    if match := re.search(r"Unable to load config ['\"](.*?)['\"]", reason):
        return f"{place}cannot read {match[1]}; name a YAML file with the settings of this group"
    return place + in_words(reason)


def full_key(message: str, group: str, config: Namespace) -> str:
    """Complete the key that a class' own check named: `alpha: …` in data becomes `data.partition.alpha: …`."""
    name = message.partition(":")[0]
    if name.partition(".")[0] == group:
        return message
    if not re.fullmatch(r"[\w.]+", name):  # an error of Python's or of a user's class, which names no key
        return f"{group}: {message}"
    return ".".join([group, *(_path(name, config) or []), message])


LISTS = {
    r"(?:list|tuple)\[tuple\[int, float\](?:, \.\.\.)?\]": "pairs in brackets, such as ⟦⟦50,0.1⟧⟧",
    r"(?:tuple|list|Sequence)\[int(?:, \.\.\.|, int)?\]": "whole numbers in brackets, such as ⟦64,32⟧",
    r"(?:tuple|list|Sequence)\[float(?:, \.\.\.|, float)?\]": "numbers in brackets, such as ⟦0.9,0.5⟧",
    r"(?:tuple|list|Sequence)\[str(?:, \.\.\.)?\]": "names in brackets, such as ⟦fc1,head⟧",
    r"(?:tuple|list)\[(\w+(?: \| \w+)+)(?:, \.\.\.)?\]": r"some of \1, in brackets",
    r"\b(?:tuple|list)\b": "a list in brackets, such as ⟦64,32⟧",
}
"""Types of lists and how they are written. The brackets of an example must not look like those of a type."""


def in_words(text: str) -> str:
    """Types as people say them."""
    text = re.sub(r"<class '([^']+)'>", r"\1", text)
    text = re.sub(r"(?:typing\.)?Literal\[([^\]]*)\]", lambda m: m[1].replace("'", "").replace(", ", " | "), text)
    text = re.sub(r"\s*\|\s*(torch\.)?Tensor\b", "", text)
    text = re.sub(r"\b(?:pathlib\.)?Path\b", "a path", text)
    text = re.sub(r"\bNoneType\b", "null", text)
    for kind, words in LISTS.items():
        text = re.sub(kind, words, text)
    text = re.sub(r"(?:typing\.)?Union\[([^\[\]]*)\]", lambda m: re.sub(", (?!such)", " | ", m[1]), text)
    text = re.sub(r"(?:typing\.)?Optional\[([^\[\]]*)\]", r"\1 | null", text)
    text = text.replace("⟦", "[").replace("⟧", "]")
    for name, words in {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}.items():
        text = re.sub(rf"\b{name}\b", words, text)
    return text


def _unknown_option(word: str, known: list[str]) -> str:
    """Suggest the option with the same last part, such as --task.optimizer.lr for --lr, or the most similar one."""
    if not word.startswith("-"):
        config = word.endswith(".yaml") or word in shipped_configs()
        hint = f"did you mean --config {word}?" if config else "options look like --key value"
        return f"{word!r} does not belong to any option; {hint}"
    last = word.lstrip("-").rpartition(".")[2].lower()
    same = [option for option in known if option.rpartition(".")[2].lower() == last]
    near = same or closest(word, known, 0.6)
    if not near:
        return f"{word}: no such option; see pfl-fit --help"
    return f"{word}: no such option; did you mean {' or '.join(near)}?"


def _no_such_option(key: str, wrong: str, class_path: str) -> str:
    """Suggest the settings of a class, the most similar one to `wrong` first."""
    parameters = list(inspect.signature(find_class("", class_path)).parameters)
    own = [name for name in parameters if key not in BASES or name not in BASES[key].filled]
    allowed = suggest(wrong, own[BASES[key].given if key in BASES else 0 :] or ["class_path with init_args"])
    return f"{key}.{wrong}: {class_path.rpartition('.')[2]} has no such option; use {allowed}"


def _path(name: str, config: Any) -> list[str] | None:
    """The keys above `name` in a class' config, without `init_args`, or None."""
    if not isinstance(config, Namespace):
        return None
    settings = config.get("init_args", config)
    if not isinstance(settings, Namespace):
        return None
    if name in settings:
        return []
    paths = ((key, _path(name, value)) for key, value in vars(settings).items())
    return next(([key, *path] for key, path in paths if path is not None), None)


def _keys(parser: ArgumentParser) -> list[str]:
    """All keys of a config."""
    skip = ("help", "config", "print_config", "print_shtab")
    return [a.dest for a in parser._actions if a.dest not in skip and not a.dest.endswith(".help")]
