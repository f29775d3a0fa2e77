"""Algorithms that break a rule of the loop end with one line, on several ranks too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lightning.fabric import Fabric

from pfl_lightning.cli.fit import run
from pfl_lightning.engine.cohort import draw_cohort
from pfl_lightning.foundation.errors import ConfigError, RunError
from tests.helpers import mistaken
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import toy_loop

SMALL = [
    "--data.num_clients", "6", "--data.partition", "IID", "--task.net", "MLP", "--task.net.hidden", "[4]",
    "--loop.rounds", "3", "--loop.participation", "0.5", "--loop.batch_size", "256", "--checkpoint.every_minutes", "0",
    "--run_dir", "run",
]  # fmt: skip
LINES = {
    "IgnoresUploads": "aggregate: the clients uploaded vector, but aggregate ignored it; call uploads.mean, or upload",
    "LooksAtItsOwnClients": "round 2: the server of rank 1 differs from rank 0's; aggregate must combine clients",
    "KeepsOnSelf": "algorithm: KeepsOnSelf sets self.last during a run, which ranks do not share and",
    "AveragesTwice": "aggregate: uploads.mean can be called once in a round; keep its result",
    "AveragesAnotherName": "aggregate: the clients uploaded vector, but uploads.mean was asked for model",
}

QUICK = {
    "RemembersInAList": "algorithm: RemembersInAList changes self.seen during a run, which ranks do not share and",
    "RemembersOnTheClass": "algorithm: RemembersOnTheClass changes self.models during a run",
    "TrainsTheServer": "algorithm: TrainsTheServer changes server.vector during a visit, which other ranks do not see",
    "FillsTheServersMemory": r"algorithm: FillsTheServersMemory changes server.memory\['last'\] during a visit",
    "KeepsWithoutAMask": "algorithm: KeepsWithoutAMask.exchange keeps entries that client.mask does not",
    "WeighsBySamples": r"algorithm: WeighsBySamples.upload returns Upload\(\d, …, \d+\) for client \d; use",
    "UploadsForAnother": r"algorithm: UploadsForAnother.upload returns Upload\(\d, …, 0.\d+\) for client \d",
    "UploadsNothing": "algorithm: UploadsNothing.upload returns nothing instead of an Upload",
    "UploadsUnevenTensors": "upload: client \\d uploads more with \\d entries, but other clients more with \\d entries",
    "AssignsTheVector": "algorithm: AssignsTheVector assigns client.vector, which disconnects it from the model; use",
    "MasksWithNumbers": r"algorithm: MasksWithNumbers makes client.mask float32 \[\d+\]; it must be bool \[\d+\]",
    "KeepsAnInteger": r"algorithm: KeepsAnInteger puts an int into client.memory\['count'\]; use a name and a tensor",
    "CountsOnTheServer": r"algorithm: CountsOnTheServer puts an int into server.memory\['count'\]",
    "AsksForMore": r"aggregate asks for extra\['loss'\], which the upload of client \d lacks",
    "RepliesWithTensors": "algorithm: RepliesWithTensors.aggregate returns a reply .*; use pairs of a client",
    "ReturnsTheModel": "algorithm: ReturnsTheModel.aggregate returns a Tensor; use pairs",
    "RepliesTooMuch": "aggregate: the reply to client \\d has 3, but the client has 0 personal values",
    "InvitesNobody": "algorithm: InvitesNobody.select_cohort chooses no client in round 1; there are 0 to 6",
    "TestsWithANumber": "algorithm: TestsWithANumber.test returns a float; use a tensor with 3 values",
    "TestsWithSevenNumbers": r"algorithm: TestsWithSevenNumbers.test returns a tensor \[7\]; use a tensor with 3",
    "HalvesTheServer": r"algorithm: HalvesTheServer.aggregate makes server.vector float32 \[5\]; it must be float32 \[",
    "WidensTheServer": r"algorithm: WidensTheServer.aggregate makes server.vector float64 \[",
    "SkipsRounds": "algorithm: SkipsRounds.aggregate changes server.round",
    "RepliesToAStranger": "algorithm: RepliesToAStranger.aggregate replies to client 99; there are 0 to 6",
    "ShortensTheMask": r"algorithm: ShortensTheMask makes client.mask bool \[3\]; it must be bool \[\d+\]",
    "InvitesHalves": r"algorithm: InvitesHalves.select_cohort chooses \[0.5, 1\]; use numbers of clients",
}


def command(name: str, ranks: int) -> int:
    return run(["--algorithm", f"tests.helpers.mistaken.{name}", *SMALL, "--fabric.devices", str(ranks)])


@pytest.mark.parametrize("name", LINES)
def test_a_mistake_is_one_line_on_two_ranks(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert command(name, ranks=2) == 1
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pfl-fit:")]
    assert len(said) == 1
    assert said[0].startswith(f"pfl-fit: error: {LINES[name]}")


def test_clients_are_trained_before_ignored_uploads_are_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), mistaken.IgnoresUploads(), participation=0.4)
    with pytest.raises(RunError, match=LINES["IgnoresUploads"]):
        loop.round()
    trained = {int(path.name.removeprefix("trained-")) for path in Path().glob("trained-*")}
    assert trained == set(draw_cohort(1, 1, 7, 0.4))
    assert loop.server.round == 0
    assert not loop.store.states


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_that_one_rank_notices(name):
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), getattr(mistaken, name)(), participation=0.4)
    with pytest.raises(RunError, match=f"^{QUICK[name]}"):
        loop.round()
    assert loop.server.round == 0


def test_names_of_version_0_1_are_refused_before_the_first_round():
    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.raises(ConfigError, match=r"BeginsAsIn01 defines begin, a name of version .*; use init_server"):
        toy_loop(fabric, mistaken.BeginsAsIn01())
    with pytest.raises(ConfigError, match=r"AveragesAsIn01.aggregate takes comm, .*; use uploads"):
        toy_loop(fabric, mistaken.AveragesAsIn01())


def test_ranks_that_choose_different_clients_are_named():
    def work(fabric: Fabric) -> str:
        with pytest.raises(RunError) as raised:
            toy_loop(fabric, mistaken.InvitesByRank()).round()
        return str(raised.value)

    line = "algorithm: the choice of InvitesByRank.select_cohort differs between rank 0 and rank 1"
    assert run_on_ranks(work, 2) == [line] * 2


def test_servers_that_differ_are_named_with_round_and_rank_and_the_round_has_not_happened():
    def work(fabric: Fabric) -> tuple[str, int]:
        loop = toy_loop(fabric, mistaken.LooksAtItsOwnClients())
        try:
            loop.fit()
        except RunError as error:
            return str(error), loop.server.round
        return "not noticed", loop.server.round

    for text, rounds in run_on_ranks(work, 2):
        assert text.startswith("round 2: the server of rank 1 differs from rank 0's")
        assert rounds == 1
    assert run_on_ranks(work, 1) == [("not noticed", 3)], "one rank has nobody to differ from"


def test_an_algorithm_is_sealed_only_when_a_loop_has_it():
    algorithm = mistaken.KeepsOnSelf()
    algorithm.last = 3
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm)
    with pytest.raises(RunError, match=LINES["KeepsOnSelf"]):
        loop.round()
    assert algorithm.last == 3
