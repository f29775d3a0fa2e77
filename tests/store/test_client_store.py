"""A run whose client states do not fit into memory is the same run."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import FedOBP, FedPAC, FedPer, PFedSOP
from pfl_lightning.checkpoint import contents
from pfl_lightning.store import StoreConfig
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import disturbed_summary, fingerprint, interrupted_summary, toy_loop, toy_summary

ALGORITHMS = [FedOBP(quantile=0.8), FedPer(), FedPAC(), PFedSOP()]
RUN = {"rounds": 5, "participation": 0.6}


def hashes(summary: dict[str, Any]) -> tuple[str, str]:
    return summary["model_sha256"], summary["clients_sha256"]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_no_result_depends_on_the_memory_that_states_may_take(algorithm: Algorithm, tmp_path):
    expected = toy_summary(1, algorithm, **RUN)
    for world, memory in [(1, 0), (1, "5KB"), (2, 0), (2, "5KB")]:
        store = StoreConfig(memory, tmp_path)
        assert fingerprint(toy_summary(world, algorithm, store=store, **RUN)) == fingerprint(expected)


@pytest.mark.parametrize("part_bytes", [1, 1 << 28])
def test_a_run_with_states_on_disk_stops_and_resumes(part_bytes, tmp_path, monkeypatch):
    algorithm = FedOBP(quantile=0.8)
    expected = toy_summary(1, algorithm, **RUN)
    monkeypatch.setattr("pfl_lightning.checkpoint.checkpoints.PART_BYTES", part_bytes)
    store, rest = StoreConfig(0), {"participation": 0.6}
    resumed = interrupted_summary(tmp_path, {2: 2, 4: 1, 5: 2}, algorithm, store=store, **rest)
    assert hashes(resumed) == hashes(expected)
    disturbed, stops = disturbed_summary(2, algorithm, 0, [3, 11], store=store, **RUN)
    assert stops == 2
    assert fingerprint(disturbed) == fingerprint(expected)


def test_states_are_really_on_disk_and_read_one_at_a_time(tmp_path):
    def work(fabric: Fabric) -> None:
        loop = toy_loop(fabric, FedOBP(quantile=0.8), store=StoreConfig(0, tmp_path), rounds=2)
        loop.fit()
        assert len(loop.store.states) == 7
        assert loop.store.tiers.used == 0
        assert loop.store.tiers.on_disk > 7 * 4 * loop.server.layout.num_parameters
        parts = list(contents.client_parts(loop, range(7), 2000))
        assert [len(inside) for inside, _ in parts] == [5, 2]

    run_on_ranks(work, 1)


def test_a_run_uses_its_own_directory_unless_the_settings_name_another(tmp_path):
    def work(fabric: Fabric) -> None:
        chosen, default = tmp_path / "chosen", tmp_path / "run"
        chosen.mkdir()
        for config, folder in ((StoreConfig(0, chosen), chosen), (StoreConfig(0), default)):
            loop = toy_loop(fabric, FedOBP(), store=config)
            loop.store.set_folder(default)
            assert loop.store.tiers.folder == folder

    run_on_ranks(work, 1)
