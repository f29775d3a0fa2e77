"""Several cells at a time, their failures, and runs that belong to another process."""

from __future__ import annotations

import pytest

from pfl_lightning.cli.run_lock import RunLock
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.display import Quiet
from pfl_lightning.compare.runner import Runner, Stopped
from tests.compare.test_interrupted import Moment
from tests.helpers.comparisons import ToyResolver, experiment, write_run
from tests.helpers.fake_fit import FakeFit


@pytest.fixture
def cells():
    return list(Comparison(experiment(seeds=[0, 1]), ToyResolver()).stage({}).cells.values())


class Watch(Quiet):
    """Notes how many cells run at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self.problems: dict[str, str | None] = {}

    def update(self, work, waiting):
        self.most = max(self.most, len(work))

    def ended(self, cell, problem):
        self.problems[cell.label] = problem


def run(folder, work, slots=3, stop=None, start=FakeFit):
    children, watch = [], Watch()

    def begin(cell, run_dir, slot):
        assert 0 <= slot < slots
        children.append(start(cell, run_dir))
        return children[-1]

    failed = Runner(begin, slots, folder, stop or Moment(-1), watch).run(work)
    return failed, children, watch


def test_as_many_cells_run_as_there_are_slots(tmp_path, cells):
    failed, children, watch = run(tmp_path, [(cell, None) for cell in cells])
    assert not failed
    assert watch.most == 3
    assert len(children) == len(watch.problems) == 8


def test_one_that_fails_does_not_stop_the_others(tmp_path, cells):
    work = [(cell, None) for cell in cells[:3]]
    failed, _, watch = run(tmp_path, work, start=lambda c, d: FakeFit(c, d, fails=3 if c is cells[1] else 0))
    assert failed == {cells[1].id: "exit code 3: it cannot go on"}
    assert [watch.problems[cell.label] is None for cell in cells[:3]] == [True, False, True]


def test_exit_code_0_alone_is_not_success(tmp_path, cells):
    class Liar(FakeFit):
        def poll(self):
            return 0

    failed, _, _ = run(tmp_path, [(cells[0], None)], start=Liar)
    assert "its config.yaml is that of another run" in failed[cells[0].id]


def test_a_request_to_stop_interrupts_all_children(tmp_path, cells):
    stop = Moment(2)
    started = []

    def start(cell, run_dir):
        started.append(FakeFit(cell, run_dir))
        return started[-1]

    with pytest.raises(Stopped):
        run(tmp_path, [(cell, None) for cell in cells], stop=stop, start=start)
    assert len(started) == 3
    assert all(child.interrupted for child in started)


def test_children_that_do_not_end_are_killed_by_a_second_ctrl_c(tmp_path, cells, monkeypatch):
    class Stubborn(FakeFit):
        def interrupt(self):
            pass

    def pressed_again(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("pfl_lightning.compare.runner.time.sleep", pressed_again)
    started = []
    with pytest.raises(KeyboardInterrupt):
        run(
            tmp_path,
            [(cell, None) for cell in cells[:2]],
            stop=Moment(1),
            start=lambda c, d: started.append(Stubborn(c, d)) or started[-1],
        )
    assert [child.killed for child in started] == [True, True]


def test_a_child_is_ended_whatever_goes_wrong(tmp_path, cells):
    class Broken(Watch):
        def update(self, work, waiting):
            raise RuntimeError("the display is broken")

    child = FakeFit(cells[0], tmp_path / "run")
    with pytest.raises(RuntimeError):
        Runner(lambda *_: child, 1, tmp_path, Moment(-1), Broken()).run([(cells[0], None)])
    assert child.interrupted


class Release(Moment):
    """Another process ends its work after a few polls."""

    def __init__(self, polls, action):
        super().__init__(-1)
        self._left, self._action = polls, action

    def wait(self, seconds, more_than=0):
        self._left -= 1
        if not self._left:
            self._action()
        return False


def test_a_run_of_another_process_is_waited_for(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0], rounds=2)
    lock = RunLock(path)

    def finish():
        write_run(path, cells[0])
        lock.release()

    failed, children, watch = run(tmp_path, [(cells[0], path)], stop=Release(3, finish))
    assert (failed, children) == ({}, [])
    assert watch.problems == {cells[0].label: None}


def test_a_run_that_another_process_gives_up_is_taken_over(tmp_path, cells):
    path = write_run(tmp_path / "run", cells[0], rounds=2)
    lock = RunLock(path)
    failed, children, _ = run(tmp_path, [(cells[0], path)], stop=Release(3, lock.release))
    assert failed == {}
    assert [child.run_dir for child in children] == [path]
