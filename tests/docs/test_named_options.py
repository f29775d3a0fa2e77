"""Commands that no test runs still parse: those of skipped blocks, and the options and keys that the text names."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentError
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from pfl_lightning.cli import compare, export, personalize, report
from pfl_lightning.cli.classes import BASES, offered
from pfl_lightning.cli.fit import OUTPUT_OPTIONS, _quick_answer
from pfl_lightning.cli.help import asked_help, class_help, class_options
from pfl_lightning.cli.parser import CLASSES, build_parser, read_command
from pfl_lightning.compare.experiment import Report
from pfl_lightning.foundation.errors import ConfigError
from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
TOOLS = {
    "pfl-compare": (compare.build_compare_parser, ["FILE"]),
    "pfl-report": (report.build_report_parser, ["RUN"]),
    "pfl-export": (export.build_export_parser, ["RUN"]),
    "pfl-personalize": (personalize.build_personalize_parser, ["RUN", "--data", "FILE"]),
}
"""The parser of each command, and what must stand on its command line."""
OTHERS = {"--nnodes", "--max-restarts", "--gpus-per-node", "--ntasks"}
"""Options of sbatch and torchrun that the text names."""
EXPERIMENT = {f"report.{field.name}" for field in fields(Report)}
KEY = re.compile(r"(?:algorithm|task|data|loop|fabric|checkpoint|store|report)\.(?!py$|md$)[a-z_.]+(?:: .+)?")


def skipped_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.replace("\\\n", " ").splitlines() if block.mark == "skip" else ():
                text = re.sub(r"^.*pfl_fit\.sbatch (?=--)", "pfl-fit ", line)
                for command in re.findall(r"(?:^| )(pfl-\w+ [^#&]*)", text):
                    yield page.name, command.strip()


def inline_code(start: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        yield from ((page.name, found) for found in re.findall(r"`([^`\n]+)`", text) if re.match(start, found))


@cache
def fit_parser() -> ArgumentParser:
    return build_parser()


def parse_fit(words: list[str]) -> None:
    """Raises a `ConfigError` if `pfl-fit` would refuse these words. A run to resume need not exist."""
    if question := asked_help(words):
        class_help(*[None if part == "NAME" else part for part in question])
        return
    if _quick_answer(words):
        return
    words = [word for word in words if word not in (*OUTPUT_OPTIONS, "--traceback")]
    if "--resume" in words:
        del words[words.index("--resume") : words.index("--resume") + 2]
    for config in [word for word in words if re.fullmatch(r"\w+\.yaml", word)]:  # a file of the reader's own
        words[words.index(config) - 1 : words.index(config) + 1] = ["--algorithm", "FedAvg"]
    named = {"--config", "--algorithm"} & set(words)
    read_command(fit_parser(), [*([] if named else ["--algorithm", "FedAvg"]), *words])


def parse_command(command: str) -> None:
    """Raises if the command would refuse its command line."""
    program, *words = [word for word in shlex.split(command) if word != "…"]
    if words and words[-1].startswith("--"):
        words.pop() if takes_option(program, words[-1]) else None
    if program == "pfl-fit":
        parse_fit(words) if words else None
    else:
        build, needed = TOOLS[program]
        build().parse_args(words if words and not words[0].startswith("-") else [*needed, *words])


@cache
def options_of_classes(key: str) -> dict[str, tuple[str, ...]]:
    """The options below a key for each class that it may name."""
    return {name: tuple(class_options(key, name, {})) for name in offered(key)}


def takes_option(program: str, option: str) -> bool:
    if program != "pfl-fit":
        return option in TOOLS[program][0]()._option_string_actions
    if option in fit_parser()._option_string_actions or option in (*OUTPUT_OPTIONS, "--traceback"):
        return True
    keys = [key for key in BASES if option.startswith(f"--{key}.")]
    return any(option in options for key in keys for options in options_of_classes(key).values())


def accepted(words: list[str]) -> bool:
    """Whether some command takes these options, if need be with a class that has them."""
    option = words[0].partition("=")[0]
    if len(words) == 1 and option == words[0]:
        return any(takes_option(program, option) for program in ("pfl-fit", *TOOLS))
    if len(words) == 2 and (key := option.removeprefix("--")) in BASES:
        return words[1] in offered(key)  # a class may have settings without a default
    for build, needed in () if takes_option("pfl-fit", option) else TOOLS.values():
        try:
            build().parse_args([*needed, *words])
            return True
        except ArgumentError:
            continue
    key, *deeper = option.removeprefix("--").split(".")
    names = [name for name, options in options_of_classes(key).items() if option in options] if key in CLASSES else []
    below = offered(f"{key}.{deeper[0]}") if len(deeper) > 1 else {}
    chosen = [[f"--{key}", name] for name in names] if deeper else []
    chosen += [[f"--{key}.{deeper[0]}", name] for name in below]
    for choice in chosen or [[]]:
        try:
            parse_fit([*choice, *words])
            return True
        except ConfigError:
            continue
    return False


def options_of_tools() -> set[str]:
    """Options of the scripts in tools, and those that the script for SLURM gives to sbatch and srun."""
    files = [*ROOT.glob("tools/**/*.py"), *ROOT.glob("tools/**/*.sbatch")]
    return {found for file in files for found in re.findall(r"(?<!\w)--[a-z][a-z-]+", file.read_text())}


@pytest.mark.parametrize(("page", "command"), [*skipped_commands(), *inline_code("pfl-")])
def test_a_command_that_is_not_run_parses(
    page: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if re.match("pfl-fit: ", command):
        return  # a message of a shell
    monkeypatch.chdir(ROOT)
    parse_command(command)


def test_options_in_the_text_exist() -> None:
    known = options_of_tools() | OTHERS
    lines = [(page, text) for page, text in inline_code("--[a-z]") if re.split("[ =]", text)[0] not in known]
    wrong = [(page, text) for page, text in lines if not accepted([w for w in shlex.split(text) if w not in "…"])]
    assert not wrong


def test_keys_in_the_text_exist() -> None:
    """Keys of an experiment file are left out, and so are classes of the reader's own."""
    wrong = []
    for page, text in inline_code(f"{KEY.pattern}$"):
        key, _, value = text.partition(": ")
        if key not in EXPERIMENT and not re.fullmatch(r"my_\w+\.\w+", value):
            wrong += [] if accepted([f"--{key}={value}" if value else f"--{key}"]) else [(page, text)]
    assert not wrong


@pytest.mark.parametrize(
    "command",
    [
        "pfl-fit --config fedobp_fashion10k --fabric.accelerator gpu",
        "pfl-fit --config configs/none.yaml",
        "pfl-fit --algorithm.help FedObb",
        "pfl-compare FILE --row FedOBP",
        "pfl-export --onxx",
    ],
)
def test_a_wrong_command_is_noticed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises((ConfigError, ArgumentError)):
        parse_command(command)


def test_a_wrong_option_is_noticed() -> None:
    assert not accepted(["--fabric.accelerator", "gpu"])
    assert not accepted(["--algorithm.quantil"])
    assert not accepted(["--data", "CIFAR11"])
    assert not accepted(["--fabric.precision=bf17-mixed"])
