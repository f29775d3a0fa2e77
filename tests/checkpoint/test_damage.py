"""Checkpoints that are broken, belong to another run or to another version: one line, and never a wrong model."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_lightning import __version__
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.manifest import manifest_path
from pfl_lightning.checkpoint.sealed import digest
from pfl_lightning.data.federated import Samples
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop
from tests.checkpoint.runs import ALGORITHM, AfterRound, new_loop, resumed, saved_run
from tests.helpers.toy import ToyData, fingerprint, toy_summary


def test_a_broken_checkpoint_is_passed_over_only_when_asked(tmp_path):
    saved_run(tmp_path)
    part = next((tmp_path / "checkpoints").glob("00000004-server*"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"round 4 .* has .* bytes instead of .*; the one of round 3 is good, use it"):
        resumed(tmp_path)
    told: list[str] = []
    loop = resumed(tmp_path, fallback=True, warnings=told)
    assert loop.server.round == 3
    assert len(told) == 1
    assert "continuing from round 3" in told[0]
    undisturbed = toy_summary(1, ALGORITHM, participation=0.4, rounds=6)
    assert fingerprint(loop.fit()) == fingerprint(undisturbed)


def test_no_good_checkpoint_at_all(tmp_path):
    saved_run(tmp_path)
    for part in (tmp_path / "checkpoints").glob("*-server*"):
        part.unlink()
    with pytest.raises(ConfigError, match=r"round 4 .*0004-server.safetensors is missing; no other checkpoint is good"):
        resumed(tmp_path, fallback=True)


def test_another_model_and_another_seed_are_refused(tmp_path):
    saved_run(tmp_path)
    with pytest.raises(ConfigError, match="another model"):
        resumed(tmp_path, num_clients=8)
    with pytest.raises(ConfigError, match="another seed"):
        resumed(tmp_path, seed=2)


@pytest.mark.parametrize("part", ["x", "y"])
def test_one_changed_value_in_the_data_is_refused(part, tmp_path, monkeypatch):
    saved_run(tmp_path)
    load = ToyData.load

    def changed(data: ToyData) -> Samples:
        samples = load(data)
        getattr(samples, part)[-1] += 1
        return samples

    monkeypatch.setattr(ToyData, "load", changed)
    with pytest.raises(ConfigError, match="the data have changed: samples, their values or their clients differ"):
        resumed(tmp_path)


def rewrite_manifest(run_dir: Path, round_: int = 4, key: str = "content", **changes) -> None:
    path = manifest_path(run_dir / "checkpoints", round_)
    content = {k: v for k, v in (json.loads(path.read_text())["content"] | changes).items() if v is not None}
    path.write_text(json.dumps({"sha256": digest(content), key: content}))


@pytest.mark.parametrize(("number", "shown"), [(1, "1"), (3, "3"), (None, "unknown")])
@pytest.mark.parametrize("fallback", [False, True])
def test_another_format_is_refused_and_names_the_version_that_wrote_it(number, shown, fallback, tmp_path):
    saved_run(tmp_path)
    for round_ in (3, 4):
        rewrite_manifest(tmp_path, round_, "checkpoint" if number == 1 else "content", format=number, version="0.0.9")
    line = (
        rf"^resume: the checkpoint of round 4 in \S+ cannot be used: it was written by pfl_lightning 0\.0\.9 in format "
        rf"{shown}, and this is {__version__}, which reads format 2 only; finish the run with 0\.0\.9$"
    )
    with pytest.raises(ConfigError, match=line):
        resumed(tmp_path, fallback)


def test_a_newer_version_is_refused_and_the_older_checkpoint_offered(tmp_path):
    saved_run(tmp_path)
    rewrite_manifest(tmp_path, version="9.0")
    with pytest.raises(
        ConfigError, match=r"written by pfl_lightning 9\.0, which is newer than this .* round 3 is good"
    ):
        resumed(tmp_path)
    told: list[str] = []
    assert resumed(tmp_path, fallback=True, warnings=told).server.round == 3
    assert len(told) == 1


def test_an_older_version_goes_on_with_a_warning(tmp_path):
    saved_run(tmp_path)
    rewrite_manifest(tmp_path, version="0.0.1", torch="2.0")
    told: list[str] = []
    assert resumed(tmp_path, warnings=told).server.round == 4
    assert told == [
        "the run was saved with torch 2.0; results may differ in the last digits",
        f"the run was saved by pfl_lightning 0.0.1; results may differ with {__version__}",
    ]


def test_other_json_is_not_a_manifest(tmp_path):
    saved_run(tmp_path, keep=1)
    path = manifest_path(tmp_path / "checkpoints", 4)
    good = json.loads(path.read_text())["content"]
    outside = [["../../mine.safetensors", *good["files"][0][1:]], *good["files"][1:]]
    for content in (
        {}, [], 7, {"format": 2}, {"format": 2, "version": "1", "files": [[1]]}, good | {"more": 1},
        good | {"clients": [99]}, good | {"files": []}, good | {"files": outside}, good | {"events": [[1]]},
    ):  # fmt: skip
        path.write_text(json.dumps({"sha256": digest(content), "content": content}))
        with pytest.raises(ConfigError, match=r"00000004.json (is not the manifest|was not written by)"):
            resumed(tmp_path)


def hashes(loop: FederatedFabricLoop) -> tuple[int, str, str]:
    return loop.server.round, loop.model_sha256(), loop.store.digest()


def saved_with_hashes(run_dir: Path, **settings) -> set[tuple[int, str, str]]:
    """A run with checkpoints of several ages, and the hashes after each of its rounds."""
    loop = new_loop(**settings)
    checkpoints = Checkpoints(run_dir, loop, CheckpointConfig(every_rounds=1))
    good: set[tuple[int, str, str]] = set()
    loop.fit([checkpoints, AfterRound(lambda: good.add(hashes(loop)))])
    return good


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "flipped": lambda content, place: content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :],
    "truncated": lambda content, place: content[:place],
}


@pytest.mark.parametrize("damage", [*DAMAGES, "deleted"])
def test_damage_to_any_single_file_costs_at_most_one_checkpoint(damage, tmp_path):
    """The files are of many ages, because only two of twenty clients are trained in a round."""
    settings = {"rounds": 12, "num_clients": 20, "participation": 0.1, "eval_every": 0}
    good = saved_with_hashes(tmp_path, **settings)
    files = {path: path.read_bytes() for path in sorted((tmp_path / "checkpoints").iterdir())}
    assert len({path.name[:8] for path in files}) >= 6, "files of many ages"
    for path, content in files.items():
        for other, original in files.items():
            other.write_bytes(original)
        path.unlink() if damage == "deleted" else path.write_bytes(DAMAGES[damage](content, len(content) // 2))
        told: list[str] = []
        loop = resumed(tmp_path, fallback=True, warnings=told, **settings)
        assert hashes(loop) in good
        assert loop.server.round in (11, 12)
        is_manifest = damage == "deleted" and path.suffix == ".json"
        assert len(told) == (0 if is_manifest else 1), "a checkpoint without a manifest was never complete"


def test_a_broken_older_checkpoint_is_reported_and_replaced(tmp_path):
    saved_run(tmp_path)
    (tmp_path / "checkpoints/00000003-server.safetensors").unlink()
    told: list[str] = []
    assert resumed(tmp_path, warnings=told).server.round == 4
    assert told == [
        f"the checkpoint of round 3 in {tmp_path} cannot be used: 00000003-server.safetensors is missing; "
        "the next one replaces it"
    ]


def test_random_damage(tmp_path):
    """With a flipped bit or cut off anywhere: one line, or the older checkpoint is used; never a wrong model."""
    good = saved_with_hashes(tmp_path, rounds=4)
    whole = {path: path.read_bytes() for path in sorted((tmp_path / "checkpoints").iterdir())}
    rng = random.Random(0)
    refused: list[str] = []
    told: list[str] = []
    for number in range(60):
        path, content = list(whole.items())[number % len(whole)]
        path.write_bytes(DAMAGES[rng.choice([*DAMAGES])](content, rng.randrange(len(content))))
        loop = new_loop()
        try:
            resume(Checkpoints(tmp_path, loop, CheckpointConfig(), warn=told.append), fallback=number % 3 > 0)
            assert hashes(loop) in good, path
        except ConfigError as error:
            refused.append(str(error))
        path.write_bytes(content)
    assert all("\n" not in text and "cannot be used" in text for text in (*refused, *told))
    assert len(told) + len(refused) == 60, "every damage is noticed"
    assert len(refused) > 5
