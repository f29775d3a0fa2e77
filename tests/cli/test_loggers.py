"""Lightning's loggers and the user's callbacks, listed in a config."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.cli import fit
from pfl_lightning.monitor import read_metrics
from tests.helpers.tiny_runs import fit_images, image_options, write_images

COUNTER = """
from pathlib import Path
from pfl_lightning import Callback

class Counter(Callback):
    def __init__(self, file: str, stop_after: int = 99):
        self.file, self.stop_after, self.events = Path(file), stop_after, []
    def on_round_start(self, round_): self.events.append(f"start {round_}")
    def on_visit_end(self, result): self.events.append("visit")
    def on_evaluation_end(self, record): self.events.append(f"evaluation {record.round}")
    def on_round_end(self, record):
        self.events.append(f"end {record.round}")
        self.should_stop = record.round >= self.stop_after
    def on_fit_end(self, summary): self.file.write_text(" ".join(self.events))
"""


def logged(path: Path) -> dict[str, list[float]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def test_several_loggers_have_the_values_of_metrics_csv_also_after_a_resume(tmp_path):
    run_dir = fit_images(tmp_path / "run", "FedAvg", "--loggers", "[csvlogger, TensorBoardLogger]")
    logs = run_dir / "lightning_logs"
    assert json.loads((run_dir / "loggers.json").read_text()) == [["CSVLogger", 0], ["TensorBoardLogger", 1]]
    assert fit.run(["--resume", str(run_dir), "--loop.rounds", "3"]) == 0
    assert sorted(path.name for path in logs.iterdir()) == ["version_0", "version_1"], "the same logged runs"
    table, values = read_metrics(run_dir / "metrics.csv"), logged(logs / "version_0" / "metrics.csv")
    assert values["step"] == table["round"] == [1, 2, 3]
    assert values["acc_after"] == table["acc_after"]
    events = EventAccumulator(str(logs / "version_1")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("acc_after")] == [
        (round_, pytest.approx(value)) for round_, value in zip([1, 2, 3], table["acc_after"], strict=True)
    ]
    assert "loop.participation: 0.5" in (logs / "version_0" / "hparams.yaml").read_text()


def test_only_rank_0_logs(tmp_path):
    run_dir = fit_images(tmp_path / "run", "FedAvg", "--loggers", "CSVLogger", "--fabric.devices", "2")
    (folder,) = (run_dir / "lightning_logs").iterdir()
    assert logged(folder / "metrics.csv")["step"] == [1, 2]


def test_a_logger_writes_elsewhere_if_it_is_told_to(tmp_path):
    entry = json.dumps({"class_path": "CSVLogger", "init_args": {"save_dir": str(tmp_path / "logs"), "name": "mine"}})
    run_dir = fit_images(tmp_path / "run", "FedAvg", "--loggers", entry, "--loggers+", "TensorBoardLogger")
    assert logged(tmp_path / "logs" / "mine" / "version_0" / "metrics.csv")["step"] == [1, 2]
    assert list((run_dir / "lightning_logs" / "version_0").glob("events*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--loggers", "CSVLoger"], "loggers: no class CSVLoger; use CSVLogger | "),
        (["--loggers", "nowhere.Logger"], "loggers: no module nowhere beside the config, in "),
        (["--loggers", "[3]"], "loggers: 3 is not allowed; use the name of a class, or class_path and init_args"),
        (["--loggers", "broken.Mine"], "loggers: importing broken failed: broken.py, line 1: ZeroDivisionError"),
        (["--callbacks", "FedAvg"], "callbacks: no class FedAvg; use "),
        (
            ["--callbacks", "{class_path: EarlyStopping, init_args: {patience: 0}}"],
            "callbacks.patience: 0 is not allow",
        ),
        (
            ["--callbacks", "{class_path: EarlyStopping, init_args: {metric: acc}}"],
            "callbacks.metric: 'acc' is not all",
        ),
        (["--callbacks", "{class_path: EarlyStopping, init_args: {metrik: acc}}"], "EarlyStopping has no such option"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    write_images(tmp_path / "images")
    words = ["--algorithm", "FedAvg", "--task.net", "SmallCNN", *image_options(tmp_path / "images")]
    assert fit.run([*words, *options, "--fabric.devices", "1", "--run_dir", "run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_a_logger_that_fails_ends_the_run_with_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(
        "from lightning.pytorch.loggers import CSVLogger\n"
        "class Failing(CSVLogger):\n"
        "    def log_metrics(self, metrics, step=None):\n"
        "        raise OSError('no space')\n"
    )
    write_images(tmp_path / "images")
    words = ["--algorithm", "FedAvg", "--task.net", "SmallCNN", *image_options(tmp_path / "images")]
    assert fit.run([*words, "--loggers", "failing.Failing", "--fabric.devices", "1", "--run_dir", "run"]) == 1
    assert "loggers: Failing failed: OSError: no space" in capsys.readouterr().err


def test_callbacks_follow_the_run_and_end_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting.py").write_text(COUNTER)
    entry = json.dumps({"class_path": "counting.Counter", "init_args": {"file": "events.txt", "stop_after": 2}})
    run_dir = fit_images(tmp_path / "run", "FedAvg", "--callbacks", entry, "--loop.rounds", "5")
    one = "start {0} visit visit evaluation {0} end {0}"
    assert (tmp_path / "events.txt").read_text() == f"{one.format(1)} {one.format(2)}"
    assert json.loads((run_dir / "summary.json").read_text())["rounds"] == 2
    assert "ended:   by Counter after round 2 of 5" in capsys.readouterr().out


def test_early_stopping_goes_on_counting_after_a_resume(tmp_path):
    entry = json.dumps({"class_path": "EarlyStopping", "init_args": {"patience": 3, "min_delta": 1.0}})
    run_dir = fit_images(tmp_path / "run", "FedAvg", "--callbacks", entry)
    assert fit.run(["--resume", str(run_dir), "--loop.rounds", "9"]) == 0
    # the first value is an improvement over nothing, the next three are none
    assert json.loads((run_dir / "summary.json").read_text())["rounds"] == 4


def test_mlflow_continues_its_run(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{tmp_path}/mlflow.db"
    entry = json.dumps({"class_path": "MLFlowLogger", "init_args": {"tracking_uri": store, "experiment_name": "mine"}})
    run_dir = fit_images(tmp_path / "run", "FedAvg", "--loggers", entry)
    assert fit.run(["--resume", str(run_dir), "--loop.rounds", "3"]) == 0
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    history = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, "acc_after"))
    assert history == list(zip([1, 2, 3], read_metrics(run_dir / "metrics.csv")["acc_after"], strict=True))
    assert run.data.params["loop.participation"] == "0.5"


def test_wandb_offline_continues_its_run(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    entry = json.dumps({"class_path": "WandbLogger", "init_args": {"offline": True, "project": "mine"}})
    run_dir = fit_images(tmp_path / "run", "FedAvg", "--loggers", entry)
    assert fit.run(["--resume", str(run_dir), "--loop.rounds", "3"]) == 0
    files = list(run_dir.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1, "both belong to one run"
    assert all(b"acc_after" in path.read_bytes() for path in files)
