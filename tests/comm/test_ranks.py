"""Ranks that decide, stop and fail together."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.comm import ranks
from pfl_lightning.comm.forked_ranks import ForkedRanks
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.foundation.errors import ConfigError, LostRankError, StopRound
from tests.helpers.ranks import run_on_ranks


def test_an_error_on_the_first_rank_is_everyones():
    def work(fabric: Fabric) -> str:
        def fail() -> None:
            assert fabric.global_rank == 0
            raise ConfigError("run_dir: no")

        try:
            Comm(fabric).run_on_rank_zero(fail)
        except ConfigError as error:
            return str(error)
        return "none"

    assert run_on_ranks(work, 2) == ["run_dir: no"] * 2


def test_one_rank_that_is_to_stop_stops_all_but_only_inside_a_round():
    def work(fabric: Fabric) -> list[str]:
        comm = Comm(fabric)
        said = []
        if fabric.global_rank == 1:
            comm.stop.seen.append(15)
        comm.leave_round()
        said.append(str(int(comm.all_sum(torch.tensor(1)))))
        comm.stoppable = True
        try:
            if comm.stop.seen:
                comm.leave_round()  # rank 1 leaves here, the others at the sum
            comm.all_sum(torch.tensor(1))
        except StopRound:
            said.append("stopped")
        return [*said, *comm.gather("still in touch")]

    assert run_on_ranks(work, 3) == [["3", "stopped", *["still in touch"] * 3]] * 3


def test_a_rank_that_leaves_a_round_meets_the_others_whatever_they_agree_on():
    """Rank 1 leaves between batches. Rank 0 has finished its clients and tells how they went."""

    def work(fabric: Fabric) -> None:
        comm = Comm(fabric)
        comm.stoppable = True
        if fabric.global_rank == 1:
            comm.stop.seen.append(15)
            with pytest.raises(StopRound):
                comm.leave_round()
        else:
            with pytest.raises(StopRound):
                comm.agree(True, False)
        assert comm.gather("still in touch") == ["still in touch"] * 2

    torch.set_num_threads(1)
    strategy = ForkedRanks(timedelta(seconds=10))
    Fabric(accelerator="cpu", devices=2, strategy=strategy).launch(work)


def test_flags_of_any_rank_are_everyones():
    def work(fabric: Fabric) -> list[list[bool]]:
        comm = Comm(fabric)
        return [comm.agree(fabric.global_rank == 1), comm.agree(False, fabric.global_rank == 0), comm.agree()]

    assert run_on_ranks(work, 2) == [[[True], [False, True], []]] * 2


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_rank_that_does_not_answer_is_named(stuck, monkeypatch, tmp_path):
    monkeypatch.setattr(ranks, "ROLL_CALL", timedelta(seconds=1))
    told = tmp_path / "told"

    def work(fabric: Fabric) -> None:
        comm = Comm(fabric)
        comm.round = 3
        if fabric.global_rank == stuck:
            while not told.exists():  # busy with something else
                time.sleep(0.01)
            return
        try:
            comm.all_sum(torch.tensor(1))
        except LostRankError as error:
            if not error.quiet:
                told.write_text(str(error))

    torch.set_num_threads(1)
    Fabric(accelerator="cpu", devices=3, strategy=ForkedRanks(timedelta(seconds=4))).launch(work)
    text = told.read_text()
    assert text.startswith(f"rank {stuck} on ")
    assert "did not answer in round 3 within fabric.timeout" in text


def test_a_rank_that_ends_is_noticed_at_once(monkeypatch):
    def work(fabric: Fabric) -> None:
        comm = Comm(fabric)
        comm.round = 3
        if fabric.global_rank == 1:
            return
        with pytest.raises(LostRankError, match=r"rank 0 on .* lost contact with another rank in round 3"):
            comm.all_sum(torch.tensor(1))

    torch.set_num_threads(1)
    Fabric(accelerator="cpu", devices=2, strategy=ForkedRanks()).launch(work)
