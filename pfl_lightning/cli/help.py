"""`--help` of the command and `--KEY.help CLASS`: whole sentences, and options that work as they are printed."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings
from typing_extensions import override

from pfl_lightning.cli.classes import BASES, find_class, offered, proper_name
from pfl_lightning.cli.explain import in_words

WIDTH = 100
EXAMPLES = """\
Train a personalized federation. A value on the command line wins over one in a file.

examples:
  pfl-fit --config fedobp_fashion10k
  pfl-fit --algorithm FedAvg --loop.rounds 20 --loop.participation 0.1
  pfl-fit --algorithm Ditto --algorithm.lam 0.5 --task.optimizer.lr 0.05

often used settings of classes:
  --task.optimizer.lr 0.05         learning rate of the local optimizer, which is SGD by default
  --task.optimizer Adam            another optimizer from torch.optim
  --task.net ResNet18              net: {nets}
  --data CIFAR10                   data set: {data}
  --data.num_clients 50            number of clients
  --data.partition Dirichlet --data.partition.alpha 0.1
                                   how samples are dealt to clients: {partitions}

all settings of a class:
  pfl-fit --algorithm.help FedOBP  in the same way: {help}; without a name they list the classes

about the command:
  --version                        print the version
  --configs                        list the configs of the package, which --config takes by name
  --sbatch                         print the path of the script for SLURM
  --quiet                          print errors only
  --json                           print the summary as JSON at the end, and nothing else
  --traceback                      show where an unexpected error comes from
"""
EXIT_CODES = """\
exit codes: 0 done; 1 the run failed; 2 a setting is wrong, nothing was written; 130 Ctrl-C
(128 + n for signal n)"""


TYPE_AND_DEFAULT = re.compile(
    r" ?\((?P<required>required, )?type: (?P<type>.*?)(, default: (?P<default>.*?))?(, known subclasses: .*)?\)$", re.S
)
"""The end of a help text as jsonargparse writes it."""


class PlainHelp(DefaultHelpFormatter):
    """Shows types and defaults in words, the names of classes without their modules, and texts as they are written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH)  # type: ignore[no-untyped-call]

    @override
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(f"{indent}{line}\n" for line in text.splitlines())

    @override
    def _expand_help(self, action: argparse.Action) -> str:
        text: str = super()._expand_help(action)
        found = TYPE_AND_DEFAULT.search(text)
        if found is None:
            return text
        text = re.sub(r"\s*\(default: [^()]*\)$", "", text[: found.start()])  # torch writes its own
        facts = ["required"] if found["required"] else []
        if action.dest in BASES:
            facts += [f"one of {' | '.join(offered(action.dest))}"]
        elif not re.match(r"(typing\.)?Literal|bool$", found["type"]):  # their values are shown with the option
            facts += [in_words(found["type"])]
        facts += [f"default: {_value(found['default'])}"] if found["default"] else []
        return f"{text} ({'; '.join(facts)})" if facts else text


def command_description() -> str:
    """The text above the options in `pfl-fit --help`."""
    keys = {"nets": "task.net", "data": "data", "partitions": "data.partition"}
    names = {name: " | ".join(offered(key)) for name, key in keys.items()}
    names["help"] = ", ".join(f"--{key}.help" for key in BASES if key != "algorithm")
    lines = []
    for line in EXAMPLES.format(**names).splitlines():
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 35, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def asked_help(argv: list[str]) -> tuple[str, str | None] | None:
    """The key and the class of `--KEY.help [CLASS]`, if the command line asks for it."""
    for position, word in enumerate(argv):
        option, equals, name = word.partition("=")
        key = option.removeprefix("--").removesuffix(".help")
        if option == f"--{key}.help" and key in BASES:
            following = argv[position + 1] if position + 1 < len(argv) else ""
            return key, (name if equals else following if not following.startswith("-") else "") or None
    return None


def class_help(key: str, name: str | None) -> str:
    """The help for a class, or the list of classes for a key."""
    if name is None:
        lines = [_summary(known, found) for known, found in offered(key).items()]
        return "\n".join([f"classes for --{key}:", *lines, "", f"settings of a class: pfl-fit --{key}.help NAME", ""])
    name = proper_name(key, name)
    found = find_class(key, name)
    return "\n\n".join([f"--{key} {name}", *describe_class(found), *_settings(key, found, {})]) + "\n"


def _settings(key: str, found: Any, defaults: dict[str, Any]) -> list[str]:
    """The options of a class, then those of the classes that it uses by default."""
    parser = settings_parser(key, found)
    if defaults:
        parser.set_defaults({f"{key}.{name}": value for name, value in defaults.items()})
    parts = [parser.format_help().strip("\n") or "It has no settings."]
    for action in parser._actions:
        default = action.default
        if action.dest in BASES and action.dest != key and default:
            inner = find_class(action.dest, default["class_path"])
            parts.append(f"--{action.dest} is {inner.__name__} by default:")
            parts += _settings(action.dest, inner, dict(default.get("init_args") or {}))
    return parts


def class_options(key: str, name: str, chosen: Mapping[str, str]) -> list[str]:
    """The options of a class and of the classes it uses: the chosen ones, or else its defaults."""
    options = []
    for action in settings_parser(key, find_class(key, name))._actions:
        if not action.dest.endswith(".help"):
            options.append(f"--{action.dest}")
        if action.dest in BASES and action.dest != key:
            inner = chosen.get(action.dest) or (action.default or {}).get("class_path")
            options += class_options(action.dest, inner, chosen) if inner else []
    return options


def settings_parser(key: str, found: Any) -> ArgumentParser:
    """A parser that knows the settings of one class, as options below `key`."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(prog="pfl-fit", usage=argparse.SUPPRESS, add_help=False, formatter_class=PlainHelp)
    given = list(inspect.signature(found).parameters)[: BASES[key].given] if key in BASES else []
    if inspect.isclass(found):
        filled = BASES[key].filled if key in BASES else ()
        parser.add_class_arguments(found, key, as_group=False, skip={*given, *filled}, fail_untyped=False)
    for action in parser._actions:
        if action.dest.endswith(".help"):
            above = action.dest.removesuffix(".help")
            action.help = "Show the settings of a class, or list the classes." if above in BASES else argparse.SUPPRESS
    return parser


def _summary(name: str, found: type) -> str:
    """A class and its first sentence. Most modules begin with one meant for a list."""
    subject, _, about = (inspect.getdoc(inspect.getmodule(found)) or "").partition("\n")[0].partition(": ")
    if re.sub(r"\W", "", subject).lower() != name.lower():
        text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
        about = re.split(r"(?<=[.!?])\s", text)[0]
    indent = " " * 20
    return textwrap.fill(f"  {name:<17} {about}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def describe_class(found: Any) -> list[str]:
    """The description of a class without the list of its arguments."""
    paragraphs = []
    for paragraph in (inspect.getdoc(found) or "").split("\n\n"):
        if re.match(r"\s*(Args:|Arguments:|\.\. )", paragraph):
            break
        paragraphs.append(textwrap.fill(" ".join(paragraph.split()), WIDTH))
    return paragraphs


def _value(text: str) -> str:
    """A default as it is written on the command line."""
    named = re.match(r"\{'class_path': '([^']+)'", text)
    return named[1].rpartition(".")[2] if named else {"True": "true", "False": "false"}.get(text, text)
