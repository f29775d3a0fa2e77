"""`pfl-personalize`: models for clients that were never in the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.cli import personalize
from pfl_lightning.cli.saved_run import open_run
from pfl_lightning.export.new_data import read_new_client
from pfl_lightning.export.personalize import first_visit
from pfl_lightning.foundation.errors import ConfigError
from tests.algorithms.test_contract import ALGORITHMS, name
from tests.export.test_export import PlainSmallCNN
from tests.helpers.own_files import random_image, write_folders
from tests.helpers.saved import assert_near, save_toy_run
from tests.helpers.tiny_runs import fit_images


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        personalize.main([str(word) for word in words])
    return int(end.value.code or 0)


def write_client(path: Path, rows: int = 24, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    y = rng.integers(0, 3, rows)
    x = (rng.integers(0, 60, (rows, 16, 16)) + 60 * y[:, None, None] + shift).astype(np.uint8)
    np.savez(path, x_train=x[:-8], y_train=y[:-8], x_test=x[-8:], y_test=y[-8:])
    return x[-8:], y[-8:]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit_images(tmp_path_factory.mktemp("personalize") / "run", "FedPer")


def test_a_new_client_gets_a_model_and_the_run_stays_as_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = write_client(tmp_path / "new.npz")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.rglob("*") if path.is_file()}
    assert command(run, "--data", tmp_path / "new.npz", "--out", tmp_path / "out", "--json") == 0
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.rglob("*") if path.is_file()} == before
    told = json.loads(capsys.readouterr().out)
    card = json.loads((tmp_path / "out/new.json").read_text())
    assert {Path(path).name for path in told["files"]} == {"new.safetensors", "new.json", "new.md"}
    assert (card["train_samples"], card["test_samples"], card["visits"]) == (16, 8, 1)
    net = PlainSmallCNN().eval()
    net.load_state_dict(load_file(tmp_path / "out/new.safetensors"), strict=True)
    inputs = (torch.from_numpy(x).float() - card["inputs"]["shift"][0]) * card["inputs"]["scale"][0]
    assert float(np.mean(net(inputs[:, None]).argmax(1).numpy() == y)) == told["results"]["acc_after"]


def test_normalisation_is_the_runs_own(run: Path, tmp_path: Path) -> None:
    """Much brighter images do not change the mean that is subtracted."""
    write_client(tmp_path / "bright.npz", shift=75)
    saved = open_run(run)
    data = read_new_client(saved.loop.data, tmp_path / "bright.npz", 0.25, 0)
    for mine, theirs in zip(data.input_scale() or (), saved.loop.data.input_scale() or (), strict=True):
        assert torch.equal(mine, theirs)
    assert data.num_clients == 5
    assert data.train_sizes.tolist() == [0, 0, 0, 0, 16]


def test_a_run_with_validation_samples_takes_a_new_client_too(run: Path, tmp_path: Path) -> None:
    """The others have no samples in these data, so they have none for validation."""
    write_client(tmp_path / "new.npz")
    data = open_run(run).loop.data
    data.validation_share = 0.25
    made = read_new_client(data, tmp_path / "new.npz", 0.25, 0)
    assert made.validation_sizes.tolist() == [0, 0, 0, 0, 4]
    assert made.train_sizes.tolist() == [0, 0, 0, 0, 12]
    assert made.label_counts().sum(1).tolist() == [0, 0, 0, 0, 12]


def test_without_training_it_is_the_model_before(run: Path, tmp_path: Path) -> None:
    write_client(tmp_path / "new.npz")
    for option, folder in (("--no-training", "before"), ("--quiet", "after")):
        assert command(run, "--data", tmp_path / "new.npz", "--out", tmp_path / folder, option) == 0
    cards = {folder: json.loads((tmp_path / folder / "new.json").read_text()) for folder in ("before", "after")}
    results = {folder: card["results"] for folder, card in cards.items()}
    assert "acc_after" not in results["before"]
    assert results["before"]["loss_before"] == results["after"]["loss_before"]
    assert results["after"]["loss_after"] < results["after"]["loss_before"]
    heads = [load_file(tmp_path / folder / "new.safetensors")["head.weight"] for folder in cards]
    assert not torch.equal(*heads)


def test_class_names_of_folders_are_those_of_the_run(tmp_path: Path) -> None:
    """The new client has dogs only. In the run cats are 0 and dogs 1."""
    options = ["--data", "ClientFolders", "--data.source", str(write_folders(tmp_path / "clients"))]
    run = fit_images(tmp_path / "run", "FedAvg", *options, "--loop.rounds", "1")
    place = tmp_path / "photos" / "dog"
    place.mkdir(parents=True)
    for number in range(4):
        random_image(np.random.default_rng(number), 30, 30).save(place / f"{number}.png")
    saved = open_run(run)
    data = read_new_client(saved.loop.data, tmp_path / "photos", 0.25, 0)
    assert data.samples.y.tolist() == [1, 1, 1, 1]
    assert data.samples.x.shape == (4, 20, 24, 3)
    assert (int(data.train_sizes[-1]), int(data.test_sizes[-1])) == (3, 1)
    place.rename(tmp_path / "photos" / "cow")
    with pytest.raises(ConfigError, match=r"data: class cow in .* is not a class of the run: cat, dog"):
        read_new_client(saved.loop.data, tmp_path / "photos", 0.25, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_a_client_without_a_state_starts_as_in_an_evaluation(tmp_path: Path, algorithm: Algorithm) -> None:
    """The first visit of a client that was never drawn, for every method. The server does not change."""
    loop = save_toy_run(tmp_path, algorithm, participation=0.3, rounds=2, finetune_epochs=0)
    evaluation, fingerprint = loop.evaluate(), loop.server.fingerprint()
    client = loop.store.home.index(-1)
    visit = first_visit(loop.engine.client, client, algorithm, loop.server)
    assert_near(visit.before, evaluation[client, 0])
    assert_near(visit.without, evaluation[client, 2])
    assert visit.after is not None
    assert loop.server.fingerprint() == fingerprint


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"x": np.zeros((3, 8, 8), np.uint8), "y": [0, 1, 2]}, "are uint8 [8, 8, 1], those of the run are uint8 [16"),
        ({"x": np.zeros((3, 16, 16), np.uint8), "y": [0, 1, 9]}, "label 9 is not a class"),
        ({"x": np.zeros((3, 16, 16), np.uint8), "y": [0.5, 1, 2]}, "are not like those of the run"),
        ({"x": np.zeros((3, 16, 16), np.uint8)}, "has no array y"),
    ],
)
def test_data_of_another_kind_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, np.ndarray], line: str
) -> None:
    np.savez(tmp_path / "new.npz", **arrays)
    assert command(run, "--data", tmp_path / "new.npz", "--out", tmp_path / "out") == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("pfl-personalize: error: data: ")
    assert line in told
    assert "new_client" not in told  # the file's own name, not that of a copy
    assert not (tmp_path / "out").exists()


def test_mistakes_on_the_command_line_are_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, line in (
        (["--data", "nowhere.npz"], "data: nowhere.npz does not exist"),
        (["--data", "README.md"], "is not a kind of file"),
        (["--data", "x.npz", "--test-share", "2"], "test-share: 2.0 is not allowed"),
        ([], "see pfl-personalize --help"),
    ):
        assert command(run, *words) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert line in told
