"""Random mistakes of a person at the command line: keys, values, config files, own classes and own data.

Each one is a command line and the files it needs. The same random numbers give the same mistake.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from tools.faults.own_code import random_own_class, random_own_data

BASE: dict[str, str] = {
    "algorithm": "FedOBP", "algorithm.quantile": "0.9", "data.num_clients": "6", "data.partition": "IID",
    "data.download": "false", "task.net": "MLP", "task.net.hidden": "[4]", "loop.rounds": "2",
    "loop.participation": "0.5", "loop.eval_every": "2", "loop.batch_size": "512", "fabric.devices": "1",
}  # fmt: skip
"""A small run that works."""
COSTLY = ("rounds", "epochs", "devices", "hidden", "max_redraws", "dim", "num_clients", "cells", "points", "compile")
"""Settings with these words in their names get no large values: the run would be right, but long."""
HARMLESS = ["", "x", "-1", "0", "1", "2", "0.5", "1.5", "-0.0", "nan", "null", "true", "[]", "{}", "[1,2", "[0.5]",
            "a.b",
            "{a: 1}", "no/such/path", "ü", "'", '"', "None", "1,5", "--", "-", "=", "1e-3", "[null]", "\t"]  # fmt: skip
LARGE = ["1e30", "inf", "-inf", "99999999999999999999", "1e-320", "1000000"]


@dataclass
class Mistake:
    """A command line, and the files in the directory where it is run."""

    words: list[str]
    files: dict[str, bytes] = field(default_factory=dict)


def random_mistake(rng: random.Random) -> Mistake:
    """Draw a mistake."""
    return rng.choice(KINDS)(rng)


def words(settings: dict[str, str]) -> list[str]:
    """A command line from settings."""
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


@cache
def known_options(algorithm: str) -> list[str]:
    """All options of the command with this algorithm."""
    from pfl_lightning.cli.help import class_options
    from pfl_lightning.cli.parser import CLASSES, GROUPS, build_parser

    chosen = {"algorithm": algorithm, "task": "Classification", "data": "Fashion10k", "task.net": "MLP"}
    top = [f"--{action.dest}" for action in build_parser()._actions if action.dest.partition(".")[0] in GROUPS]
    nested = [option for key in CLASSES for option in class_options(key, chosen[key], chosen)]
    return sorted({*top, *nested, "--seed", "--run_dir", "--resume", "--config"})


def wrong_key(rng: random.Random) -> Mistake:
    """An option with a slip of the finger, without its value, or in the wrong place."""
    option = rng.choice(known_options("FedOBP"))
    place = rng.randrange(2, len(option))
    slips = [
        option[:place] + option[place + 1 :],
        option[:place] + rng.choice("aeioxyz_.-1") + option[place:],
        option.upper(),
        option.rpartition(".")[2],
        f"--{option.rpartition('.')[2].lstrip('-')}",
        option.replace("_", "-"),
        option.replace("--", "-"),
        f"{option}.{rng.choice(['x', 'class_path', 'init_args', 'help'])}",
    ]
    value = rng.choice([["1"], ["x"], []])
    where = rng.choice([0, len(BASE) * 2])
    line = words(BASE)
    return Mistake([*line[:where], rng.choice(slips), *value, *line[where:]])


def wrong_value(rng: random.Random) -> Mistake:
    """A value that an option does not expect. Some are fine and give a run."""
    from pfl_lightning.cli.classes import offered

    algorithm = rng.choice(list(offered("algorithm")))
    settings = {**BASE, "algorithm": algorithm}
    del settings["algorithm.quantile"]
    for _ in range(rng.choice([1, 1, 2])):
        option = rng.choice(known_options(algorithm))
        costly = any(word in option for word in COSTLY)
        settings[option.removeprefix("--")] = rng.choice(HARMLESS if costly else [*HARMLESS, *LARGE])
    return Mistake(words(settings))


def wrong_class(rng: random.Random) -> Mistake:
    """Classes that do not exist, do not belong there, or do not fit each other."""
    from pfl_lightning.cli.classes import BASES, offered

    key, other = rng.choice(list(BASES)), rng.choice(list(BASES))
    name = rng.choice(
        [*offered(other), "Nobody", "os.path", "torch.nn.Linear", "a.b.C", ".x", "x.", "3", "", "no such"]
    )
    changed = rng.choice([name, name.lower(), name.upper(), name + rng.choice("sx1"), name[1:]])
    heavy = ("ResNet", "LBFGS")  # slow, not wrong
    return Mistake(words({**BASE, key: "SmallCNN" if changed.startswith(heavy) else changed}))


def wrong_file(rng: random.Random) -> Mistake:
    """A config file that cannot be read or does not hold a config."""
    texts = [b"", b"# nothing\n", b"loop: [3\n", b"- 1\n- 2\n", b"text", b"\xff\xfe\x00", b"3: 4\n", b"a: b: c\n",
             b"\t\n",
             b"extends: bad.yaml\n", b"extends: nobody.yaml\n", b"extends: [1]\n", b"extends: .\n", b"&a [*a]\n",
             b"algorithm:\n", b"loop:\n  - rounds\n", b"? [1]\n: 2\n", b"seed: 2020-13-45\n",
             b"!!python/name:os.system x\n",
             b"algorithm: FedAvg\nalgorithm: Ditto\n", b"seed: 0\n---\nseed: 1\n",
             "ä: ö\n".encode("latin-1")]  # fmt: skip
    name = rng.choice(["bad.yaml", "bad.yaml", "bad.yaml", "missing.yaml", ".", "bad.yaml/x", "a" * 300])
    option = rng.choice(["--config", "--config", "--loop", "--task.net", "--resume", "--store.folder", "--run_dir"])
    return Mistake([*words(BASE), option, name], {"bad.yaml": rng.choice(texts)})


def wrong_yaml(rng: random.Random) -> Mistake:
    """A config with a few nodes that were replaced, renamed, removed or moved."""
    content: dict[str, Any] = {
        "algorithm": {"class_path": "FedOBP", "init_args": {"quantile": 0.9, "score": "obp"}},
        "task": {"class_path": "Classification", "init_args": {
            "net": {"class_path": "MLP", "init_args": {"hidden": [4]}},
            "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.01, "momentum": 0.5}}}},
        "data": {"class_path": "Fashion10k", "init_args": {"num_clients": 6, "partition": {"class_path": "IID"}}},
        "loop": {"rounds": 2, "participation": 0.5, "batch_size": 512, "eval_every": 2},
        "fabric": {"devices": 1}, "checkpoint": {"keep": 1}, "seed": 1,
    }  # fmt: skip
    for _ in range(rng.randint(1, 3)):
        holder: Any = content
        while isinstance(holder, dict) and holder:
            key = rng.choice(list(holder))
            if not isinstance(holder[key], dict) or rng.random() < 0.3:
                _spoil(rng, holder, key, content)
                break
            holder = holder[key]
    # without its node `loop` the config would be right, but the run long
    return Mistake(["--config", "bad.yaml", "--loop.rounds", "1"], {"bad.yaml": yaml.safe_dump(content).encode()})


def _spoil(rng: random.Random, holder: dict[str, Any], key: str, content: dict[str, Any]) -> None:
    kind = rng.choice(["value", "rename", "remove", "move"])
    if kind == "value" and key not in ("rounds", "hidden", "devices", "num_clients"):
        holder[key] = rng.choice(
            [None, [], {}, "", "x", -1, 0, 1.5, True, [1], {"a": 1}, 1e300, "FedAvg", float("nan")]
        )
    elif kind == "rename":
        holder[key + rng.choice("sx_")] = holder.pop(key)
    elif kind == "remove":
        del holder[key]
    else:
        content[key] = copy.deepcopy(holder[key])


def own_class(rng: random.Random) -> Mistake:
    """An algorithm, task or net of the user's own with a mistake in it."""
    key, code, name = random_own_class(rng)
    # settings of the class that is replaced would be refused before the class is made
    settings = {option: value for option, value in BASE.items() if not option.startswith(f"{key}.")}
    return Mistake(words({**settings, key: name}), {"mine.py": code.encode()})


def own_data(rng: random.Random) -> Mistake:
    """Data of the user's own with wrong shapes, types, labels or indices."""
    code, name = random_own_data(rng)
    settings = {key: value for key, value in BASE.items() if not key.startswith("data.")}
    return Mistake(words({**settings, "data": name}), {"mine.py": code.encode()})


def no_sense(rng: random.Random) -> Mistake:
    """Words in any order."""
    line = words(BASE)
    picked = rng.sample(line, rng.randint(0, 4))
    return Mistake(
        [*picked, *rng.choices(["--help", "--version", "-x", "", "FedAvg", "--resume", "auto", "--config"], k=1)]
    )


KINDS: list[Callable[[random.Random], Mistake]] = [
    wrong_key, wrong_value, wrong_value, wrong_value, wrong_class, wrong_file, wrong_yaml, own_class, own_class,
    own_data,
    no_sense,
]  # fmt: skip
