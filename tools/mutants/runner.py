"""Run the tests of a method while one of its files has an error, in a forked copy of a warm process.

The fork has torch, Lightning and all rooms but the algorithms loaded already. So a mutant costs what its tests cost.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tools.mutants.targets import CODE, ROOT, TESTS, Target

WARM = ("scipy.optimize", "scipy.cluster.hierarchy", "torchvision", "pfl_lightning.loop", "pfl_lightning.checkpoint",
        "pfl_lightning.store", "pfl_lightning.nets", "pfl_lightning.tasks", "pfl_lightning.data")  # fmt: skip
RANKS = ("ranks", "given_up")
"""Words in the names of the contract's tests that start several ranks: slow, and seldom the only ones to notice."""
CPU_SECONDS = 60
"""Beyond it a mutant's tests count as endless."""
WALL_SECONDS = 900
"""Beyond it, as waiting for ever."""


class Outcome(NamedTuple):
    """What the tests said."""

    status: str
    """killed, endless or survived"""
    test: str
    """The first test that failed."""
    cpu: float


class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one file of the algorithms with another source."""

    def __init__(self, file: str, source: str) -> None:
        self.path, self.source = CODE / file, source
        self.name = ".".join((CODE / file).relative_to(ROOT).with_suffix("").parts)

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


class Watch:
    """A pytest plugin: selects and orders the tests, notes their durations and the first failure."""

    def __init__(self, classes: Sequence[str] | None, durations: dict[str, float], longest: float) -> None:
        self.classes, self.durations, self.longest = classes, durations, longest
        self.found: dict[str, float] = {}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.classes is not None:
            ids = [f"[{name}{end}" for name in self.classes for end in ("]", "-")]
            items[:] = [item for item in items if any(i in item.nodeid for i in ids)]
            items[:] = [item for item in items if not any(word in item.name.partition("[")[0] for word in RANKS)]
        items[:] = [item for item in items if self.durations.get(item.nodeid, 0.0) <= self.longest]
        items.sort(key=lambda item: self.durations.get(item.nodeid, 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        start = cpu()
        result = yield
        self.found[item.nodeid] = cpu() - start
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"import of {report.nodeid}"


class Runner:
    """Runs tests in forks.

    Args:
        out: a directory for the durations of tests and the forks' words.
        longest: tests that took more CPU seconds without an error are left out.
        contract: whether a file's own tests are followed by the contract.
    """

    def __init__(self, out: Path, longest: float, contract: bool) -> None:
        self.out, self.longest, self.contract = out, longest, contract
        self.durations: dict[str, float] = {}
        if (out / "durations.json").exists():
            self.durations = json.loads((out / "durations.json").read_text())
        for name in WARM:
            importlib.import_module(name)
        gc.freeze()  # or every fork would copy what it collects
        atexit.register(gc.unfreeze)
        assert not [name for name in sys.modules if name.startswith(("pfl_lightning.algorithms", "tests."))]

    def run(self, target: Target, file: str, source: str) -> Outcome:
        """The outcome of a file's own tests and, if they pass, of the contract."""
        self.learn(target)
        broken = Broken(file, source)
        first = self.fork([str(TESTS / name) for name in target.own], None, broken)
        if first.status != "survived" or not self.contract:
            return first
        second = self.fork([str(TESTS / "test_contract.py")], target.classes, broken)
        return second._replace(cpu=first.cpu + second.cpu)

    def learn(self, target: Target) -> None:
        """Measure tests that have never been run; they must pass."""
        for name in target.own:
            if not any(f"/{name}::" in test for test in self.durations):
                outcome = self.fork([str(TESTS / name)], None, None)
                if outcome.status != "survived":
                    sys.exit(f"the tests fail without an error: {outcome.test or name}")
                (self.out / "durations.json").write_text(json.dumps(self.durations, indent=0))

    def fork(self, files: list[str], classes: list[str] | None, broken: Broken | None) -> Outcome:
        answer = self.out / "answer.json"
        answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self.child(files, classes, broken, answer)
        start = time.monotonic()
        while True:
            pid, _, usage = os.wait4(child, os.WNOHANG)
            if pid or time.monotonic() - start > WALL_SECONDS:
                break
            time.sleep(0.02)
        end_group(child)
        if not pid:
            os.waitpid(child, 0)
        if not answer.exists():
            return Outcome("endless", "", usage.ru_utime + usage.ru_stime)
        content = json.loads(answer.read_text())
        if broken is None:
            self.durations |= content["durations"]
        return Outcome("survived" if content["code"] in (0, 5) else "killed", content["failed"], content["cpu"])

    def child(self, files: list[str], classes: list[str] | None, broken: Broken | None, answer: Path) -> None:
        """Become the process that runs the tests, and end."""
        os.setsid()
        if broken is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            sys.meta_path.insert(0, broken)
        words = os.open(self.out / "words.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(words, 1)
        os.dup2(words, 2)
        os.chdir(ROOT)
        watch = Watch(classes, self.durations, self.longest if broken is not None else float("inf"))
        options = ["-x", "-n", "0", "--no-header", "--tb=line", "-W", "ignore", "-p", "no:cacheprovider"]
        options += ["-p", "no:unraisableexception", "-p", "no:threadexception"]  # they collect garbage, which is slow
        code = 1
        try:
            code = int(pytest.main([*options, *files], plugins=[watch]))
        finally:
            found = {"code": code, "failed": watch.failed, "cpu": cpu(), "durations": watch.found}
            part = answer.with_suffix(".part")
            part.write_text(json.dumps(found))
            part.rename(answer)
            os._exit(0)


def cpu() -> float:
    """CPU seconds of this process and of the ranks that it has started and that have ended."""
    return sum(os.times()[:4])


def end_group(leader: int) -> None:
    """End what a fork has left: ranks that wait for one that has failed."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
