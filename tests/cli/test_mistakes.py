"""One clear line for each mistake, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pfl_lightning.cli.fit import run
from pfl_lightning.cli.parser import build_parser, parse
from pfl_lightning.foundation.errors import ConfigError
from tests.cli.test_fit import SMALL, _elsewhere  # noqa: F401 (a fixture)

MISTAKES = {
    "--loop.roundz 3": "--loop.roundz: no such option; did you mean --loop.rounds?",
    "--loop.round 3": "--loop.round: no such option; did you mean --loop.rounds?",
    "--loop.rounds x": "loop.rounds: 'x' is not allowed; use a whole number",
    "--loop.rounds 0": "loop.rounds: 0 is not allowed; use a whole number >= 1",
    "--loop.participation 0": "loop.participation: 0.0 is not allowed; use a number above 0 and up to 1",
    "--algorithm FedFoo": "algorithm: no class FedFoo; use ",
    "--algorithm.quantil 0.5": "algorithm.quantil: FedOBP has no such option; use quantile | ",
    "--algorithm.quantile x": "algorithm.quantile: 'x' is not allowed; use a number",
    "--algorithm FedProx --algorithm.mu x": "algorithm.mu: 'x' is not allowed; use a number",
    "--algorithm.quantile 1.5": "algorithm.quantile: 1.5 is not allowed; use a number from 0 to 1",
    "--task.net Foo": "task.net: no class Foo; use ",
    "--fabric.devices 0": "fabric.devices: 0 is not allowed; use auto or a whole number >= 1",
    "--fabric.devices many": "fabric.devices: 'many' is not allowed; use a whole number or auto",
    "--store.memory lots": "store.memory: 'lots' is not allowed; use bytes, or a number with a unit such as 512MB",
    "--store.folder nowhere": "store.folder: 'nowhere' is not allowed; use a directory that exists",
    "--fabric.num_nodes 2": "fabric.num_nodes: 2 needs SLURM (srun) or torchrun to start the other nodes",
    "--data.partition Shards --data.partition.num_shards 20000": "data.partition.num_shards: 20000 ",
    "--data.partition Dirichlet --data.partition.alpha -1": "data.partition.alpha: -1.0 is not allowed; use ",
    "--data CIFAR100 --data.root nowhere --data.download false": "data: CIFAR100 is not in nowhere",
    "--data CIFAR100 --data.root new/data --data.download false": "data: CIFAR100 is not in new/data",
    "--task Regression --task.net MLP": "task: Regression learns numbers, but the targets of Fashion10k are classes",
    "--task Forecasting --task.net MLP": "task: Forecasting learns numbers, but the targets of Fashion10k are classes",
    "--data Polynomial": "task: Classification learns classes, but the targets of Polynomial_1 are numbers; use ",
    "--task.optimizer.lr -0.01": "task.optimizer: Invalid learning rate: -0.01",
    "--algorithm PFedSOP --task.optimizer.momentum 0 --task.optimizer.nesterov true": "task.optimizer: Nesterov",
    "--task.optimizer.lr abc": "task.optimizer.lr: 'abc' is not allowed; use a number",
    "--task.net.hidden abc": "task.net.hidden: 'abc' is not allowed; use a list in brackets, such as [64,32]",
    "--lr 0.1": "--lr: no such option; did you mean --task.optimizer.lr?",
    "--quantile 0.1": "--quantile: no such option; did you mean --algorithm.quantile?",
    "--batch-size 8": "--batch-size: no such option; did you mean --loop.batch_size?",
    "--algorithm fedobq": "algorithm: no class fedobq; use FedOBP | ",
    "--algorithm nowhere.Mine": "algorithm: no module nowhere beside the config, in ",
    "--algorithm os.path": "algorithm: os.path is not a subclass of pfl_lightning.algorithm.Algorithm",
    "--algorithm torch.nn.Linear": "algorithm: torch.nn.Linear is not a subclass of ",
    "--algorithm broken.Mine": "algorithm: importing broken failed: SyntaxError: invalid syntax (broken.py, line 1)",
    "--algorithm needs.Mine": "algorithm: importing needs failed: needs.py, line 1: ModuleNotFoundError: No",
    "--algorithm quits.Mine": "algorithm: importing quits failed: quits.py, line 1: SystemExit: 3",
    "--algorithm good.Mein": "algorithm: no class Mein in ",
    "--task good.Bare": "task: Bare has no net; its build(spec) must set self.net to a module",
    "--task good.NoOptimizer": "task: NoOptimizer.configure_optimizers must return one torch optimizer, ",
    "--task good.Fussy": "task: good.Fussy cannot be made: Fussy.__init__ (good.py, line 20): KeyError: 'colour'",
    "--task.net good.Narrow --task.net.hidden [4]": "task.net.hidden: Narrow has no such option; use width",
    "--data.num_clients=": "data.num_clients: '' is not allowed; use a whole number",
    "--loggers=": "loggers: '' is not allowed; use a list in brackets",
    "--config slip.yaml": "datax: no such key; use data | ",
    "--config inner_slip.yaml": "data.init_args_.partition.class_path: Fashion10k has no such option; use ",
    "--seed -1": "seed: -1 is not allowed; use 0 or more",
    "--seed": "seed: the value is missing; use --seed VALUE",
    "stray": "'stray' does not belong to any option; options look like --key value",
    "mine.yaml": "'mine.yaml' does not belong to any option; did you mean --config mine.yaml?",
    "fedobp_fashion10k": "'fedobp_fashion10k' does not belong to any option; did you mean --config fedobp_fashion10k?",
    "--config empty.yaml": "config: empty.yaml is empty; write keys and values",
    "--config comments.yaml": "config: comments.yaml is empty; write keys and values",
    "--config list.yaml": "config: list.yaml must hold keys and values",
    "--config binary.yaml": "config: cannot read binary.yaml: it is not a text file",
    "--config": "config: the file name is missing; use --config FILE.yaml",
    "--loop nowhere.yaml": "loop: cannot read nowhere.yaml; ",
    "--algorithm.quantile.x 1": "algorithm.quantile: it has no settings of its own",
    "--run_dir full": "run_dir: full is not empty; use a new or empty directory",
    "--run_dir full/file": "run_dir: full/file is a file; use a new or empty directory",
    "--run_dir=": "run_dir: the value is missing; use --run_dir DIR",
    "--resume=": "resume: the value is missing; use --resume DIR",
    "--resume": "resume: the value is missing; use --resume DIR",
    f"--run_dir {'x' * 300}": f"run_dir: {'x' * 300} cannot be used: File name too long",
    "--run_dir full/file/x": "run_dir: full/file/x cannot be created: ",
    "--config nowhere.yaml": "config: cannot read nowhere.yaml: No such file or directory",
    "--config broken.yaml": "config: broken.yaml is not valid YAML in line 2",
    "--config twice.yaml": "config: twice.yaml is not valid YAML in line 3: loop appears twice",
    "--config again.yaml": "resume: there is no run in nowhere",
    "--config other.yaml": "foo: no such key; use ",
    "--config circle.yaml": "extends: circle.yaml extends itself",
    "--config orphan.yaml": "extends: orphan.yaml names nobody.yaml",
}


GOOD = """\
from pfl_lightning.algorithms import FedAvg
from pfl_lightning.data import DataSpec
from pfl_lightning.nets import MLP
from pfl_lightning.tasks import Classification
class Mine(FedAvg): ...
class Bare(Classification):
    def build(self, spec):
        pass
    def configure_optimizers(self):
        return None
class NoOptimizer(Classification):
    def configure_optimizers(self):
        return None
class Narrow(MLP):
    def __init__(self, spec: DataSpec, width: int = 3):
        super().__init__(spec)
class Fussy(Classification):
    def __init__(self):
        super().__init__()
        {}["colour"]
"""
FILES = {
    "full/file": b"mine", "broken.yaml": b"loop: [3\n", "other.yaml": b"foo: 3\n",
    "circle.yaml": b"extends: circle.yaml\n", "again.yaml": b"resume: nowhere\n",
    "twice.yaml": b"loop:\n  rounds: 5\nloop:\n  batch_size: 8\n",
    "orphan.yaml": b"extends: nobody.yaml\n", "empty.yaml": b"", "comments.yaml": b"# nothing\n", "list.yaml": b"- 1\n",
    "binary.yaml": b"\xff\xfe\x00", "broken.py": b"class Mine(:\n", "needs.py": b"import no_such_module_anywhere\n",
    "slip.yaml": b"datax:\n  init_args:\n    partition:\n      class_path: IID\n",
    "inner_slip.yaml": b"data:\n  class_path: Fashion10k\n  init_args_:\n    partition:\n      class_path: IID\n",
    "no_name.yaml": b"data:\n  class_path: [1]\n",
    "quits.py": b"raise SystemExit(3)\n", "good.py": GOOD.encode(),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_modules():
    """Files of one test must not be found by the next."""
    yield
    for name in ("broken", "needs", "quits", "good"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_line_and_leaves_nothing(words, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    assert run([*SMALL, *words.split()]) == 2
    out, err = capfd.readouterr()
    assert err.startswith(f"pfl-fit: error: {MISTAKES[words]}"), err
    assert err.count("\n") == 1
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_the_command_alone_points_to_the_help(capfd):
    assert run([]) == 2
    err = capfd.readouterr().err
    assert err.startswith("pfl-fit: error: algorithm: missing; use --config FILE.yaml or --algorithm NAME")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["fedobp", "FEDOBP", "FedObp"])
def test_names_of_classes_match_in_any_case(name, tmp_path):
    (tmp_path / "any.yaml").write_text(f"algorithm: {name}\ndata:\n  class_path: {'fashion10K'}\n")
    for words in (["--algorithm", name], [f"--algorithm={name}"], ["--config", "any.yaml"]):
        assert parse(build_parser(), words).algorithm.class_path == "pfl_lightning.algorithms.FedOBP"


def test_a_number_in_scientific_notation_stays_a_number(tmp_path):
    """YAML 1.1 takes 1e-3 for text; the parser does not, whether the file extends another one or not."""
    (tmp_path / "base.yaml").write_text("algorithm: FedAvg\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nloop:\n  participation: 5e-1\n  rounds: 3\n")
    found = parse(build_parser(), ["--config", str(tmp_path / "top.yaml")])
    assert (found.loop.participation, found.loop.rounds) == (0.5, 3)


def test_an_unexpected_option_below_a_group_is_named(tmp_path):
    (tmp_path / "a.yaml").write_text("algorithm: FedAvg\nloop:\n  round: 3\n")
    with pytest.raises(ConfigError, match=r"^loop\.round: no such key; use rounds \| "):
        parse(build_parser(), ["--config", str(Path("a.yaml"))])
