"""What --help, --version and --KEY.help print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from pfl_lightning.cli.classes import BASES, find_class, offered
from pfl_lightning.cli.fit import run
from pfl_lightning.cli.help import class_help
from pfl_lightning.cli.parser import build_parser, parse


def test_help_is_the_parsers_own_text(capfd):
    """In a process of its own, where no other test has defined classes."""
    code = (
        "from pfl_lightning.cli.parser import build_parser; print(build_parser(with_help=True).format_help(), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run(["--help"]) == 0
    assert capfd.readouterr().out == done.stdout, "run python tools/write_help.py"


def test_help_and_version_do_not_import_torch():
    code = "import sys; from pfl_lightning.cli.fit import run; run(['--help']); run(['--version']); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, version, imported = done.stdout.splitlines()
    assert re.fullmatch(r"pfl-fit \d+\.\d+\.\d+\S*", version)
    assert imported == "False"


def test_every_example_in_the_help_works(capfd):
    run(["--help"])
    text = capfd.readouterr().out
    examples = text.partition("\noptions:")[0]
    commands = re.findall(r"^  pfl-fit (--algorithm .*)$", examples, re.MULTILINE)
    options = re.findall(r"^  (--(?:task|data)\S* [\w.]+(?: --\S+ \S+)?)(?:  |$)", examples, re.MULTILINE)
    assert len(commands) == 2
    assert len(options) == 6
    for words in [*commands, *(f"--algorithm FedAvg {words}" for words in options)]:
        parse(build_parser(), shlex.split(words))
    for word in ("learning rate", "ResNet18", "Dirichlet", "exit codes: 0"):
        assert word in text


@pytest.mark.parametrize("key", BASES)
def test_every_class_shows_whole_sentences_and_options_that_work(key):
    for name in offered(key):
        text = class_help(key, name)
        first = " ".join((find_class(key, name).__doc__ or "").split("\n\n")[0].split())
        assert first in " ".join(text.split()), name
        options = re.findall(r"^  --(\S+)", text, re.MULTILINE)
        assert all(option == key or option.startswith(f"{key}.") for option in options)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("--data.help CIFAR10", "--data CIFAR10 --data.partition.alpha 0.1 --data.num_clients 5"),
        ("--data.partition.help dirichlet", "--data.partition Dirichlet --data.partition.min_size 3"),
        ("--task.optimizer.help SGD", "--task.optimizer SGD --task.optimizer.momentum 0.9"),
        ("--task.help=Classification", "--task.optimizer.lr 0.1"),
        ("--algorithm.help FedOBP", "--algorithm FedOBP --algorithm.quantile 0.5"),
    ],
)
def test_printed_options_are_accepted(question, words, capfd):
    assert run(question.split()) == 0
    text = capfd.readouterr().out
    for option in re.findall(r"--\S+\.\S+", words):
        assert f"{option} " in text
    parse(build_parser(), ["--algorithm", "FedAvg", *words.split()])


def test_without_a_name_the_classes_are_listed(capfd):
    assert run(["--algorithm.help"]) == 0
    text = capfd.readouterr().out
    assert all(f"\n  {name} " in text for name in offered("algorithm"))
    assert "…" not in text


def test_an_unknown_class_has_no_help(capfd):
    assert run(["--algorithm.help", "FedObq"]) == 2
    assert capfd.readouterr().err.startswith("pfl-fit: error: algorithm: no class FedObq; use FedOBP | ")
