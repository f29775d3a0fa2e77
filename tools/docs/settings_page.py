"""The page with every key of a config: its option, its default and its meaning, read from the parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable

INTRODUCTION = """\
# Settings

Every key of a config with its default and meaning. On the command line a key is an option, `--loop.rounds 20`. In a
file it is nested:

```yaml
algorithm:
  class_path: FedOBP
  init_args: {quantile: 0.995}
loop: {rounds: 20}
```

`algorithm`, `task`, `data` and the keys inside them name a class, which has settings of its own. The second part of
this page lists them.
"""
CLASSES = {
    "algorithm": "Methods",
    "task": "Tasks",
    "task.net": "Nets",
    "task.optimizer": "Optimizers",
    "data": "Data",
    "data.partition": "Partitions",
    "callbacks": "Callbacks",
    "loggers": "Loggers",
}
ONLY = {"task.optimizer": ("SGD",), "loggers": ()}
"""Classes of other packages that are shown. The others are named in a line."""
FACTS = re.compile(r" ?\(([^()]*(?:\([^()]*\)[^()]*)*)\)$")


def settings_page() -> str:
    """The page as Markdown."""
    from pfl_lightning.cli.parser import GROUPS, build_parser

    actions = [action for action in build_parser(with_help=True)._actions if action.option_strings]
    own = [action for action in actions if "." not in action.dest and action.dest not in GROUPS]
    parts = [INTRODUCTION, "## Keys\n\n### The run", _list(own)]
    for key, config in GROUPS.items():
        below = [action for action in actions if action.dest.startswith(f"{key}.")]
        parts += [f"### {key}", _sentence(config.__doc__ or ""), _list(below)]
    for key, title in CLASSES.items():
        parts += [f"## {title}: `{key}`", *_classes(key)]
    return "\n\n".join(parts) + "\n"


def _classes(key: str) -> list[str]:
    from pfl_lightning.cli.classes import offered
    from pfl_lightning.cli.help import describe_class, settings_parser

    shown = ONLY.get(key, tuple(offered(key)))
    parts = []
    for name in shown:
        found = offered(key)[name]
        lines = _list(settings_parser(key, found)._actions)
        # a class of another package has pages of its own
        about = [] if key in ONLY else [_literal(paragraph) for paragraph in describe_class(found)]
        parts += [f"### {name}", *about, lines or "It has no settings."]
    if others := [f"`{name}`" for name in offered(key) if name not in shown]:
        parts.append(f"{', '.join(others)}: `pfl-fit --{key}.help NAME` shows their settings.")
    return parts


def _list(actions: Iterable[argparse.Action]) -> str:
    lines = [line for action in actions if (line := _line(action))]
    return "\n".join(lines)


def _line(action: argparse.Action) -> str:
    """The line of an option, or nothing for options that only ask for help."""
    from pfl_lightning.cli.help import PlainHelp

    if action.help == argparse.SUPPRESS or action.dest.endswith(("help", "print_config")):
        return ""
    text = " ".join(PlainHelp("pfl-fit")._expand_help(action).split())
    found, default, kind = FACTS.search(text), "", ""
    if found and re.search(r"default: |required|^(a |text|whole|true)", found[1]):
        text, facts = text[: found.start()], found[1].split("; ")
        default = next((fact.removeprefix("default: ") for fact in facts if fact.startswith("default: ")), "")
        default = default or ("required" if "required" in facts else "")
        kind = "; ".join(fact for fact in facts if not fact.startswith(("default: ", "one of ")) and fact != "required")
    choices = " | ".join(map(str, action.choices or ()))
    if not choices and isinstance(action.metavar, str) and action.metavar.startswith("{"):
        choices = action.metavar.strip("{}").replace(",", " | ")
    if re.search(r"(Union|Optional|Callable)\[", kind):
        kind = ""  # too long: the text says it
    kind = f" *{choices or kind}*" if choices or kind else ""
    default = default.lower() if default in ("True", "False") else default
    if re.fullmatch(r"\(.*\)", default):  # a tuple, as one writes it in a config
        default = "[" + default[1:-1].rstrip(",").replace("'", "") + "]"
    shown = f" = `{default}`" if default not in ("", "required") else f" ({default})" if default else ""
    return f"- **`{action.dest}`**{shown}: {_literal(text)}{kind}"


def _sentence(text: str) -> str:
    return _literal(" ".join(text.split("\n\n")[0].split()))


def _literal(text: str) -> str:
    """The text with letters that Markdown or HTML would take for their own."""
    text = text.replace("<", "&lt;")
    return re.sub(r"([*_~])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", text)
