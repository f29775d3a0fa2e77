"""TensorBoard events, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.fabric import Fabric
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from pfl_lightning.algorithms import FedPer
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.monitor import Metric, RoundRecord
from pfl_lightning.monitor.board import has_curve, settings
from pfl_lightning.monitor.tensorboard import TensorBoardWriter, bin_edges, tag
from pfl_lightning.tasks import Classification
from tests.helpers.toy import ToyData, ToyNet

METRICS = [Metric.named("acc", "higher"), Metric.named("loss", "lower"), Metric.named("rmse", "lower")]
CONFIG = "algorithm: FedOBP\nnote: |\n  ```\n  <b>\n"


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run_dir = tmp_path_factory.mktemp("run")
    writer = TensorBoardWriter(run_dir, METRICS)
    figure = Figure(figsize=(3, 2))
    figure.subplots().bar([0, 1], [3, 4])
    writer.start(CONFIG, {"partition": figure})
    for number in (1, 2):
        writer.round(
            RoundRecord(
                number,
                {"seconds": 2.0, "train_loss": 0.5, "acc_before": number / 4, "personal_share": 0.125, "up_bytes": 96},
                {"acc_before": np.array([0.0, 0.5, 1.0, np.nan]), "all_acc_before": np.array([np.nan])},
                {"net.head.weight": 0.25},
                {"fit": 1.5},
            ),
            samples=300,
        )
    writer.close()
    assert len(list(run_dir.iterdir())) == 1
    return EventAccumulator(str(run_dir), size_guidance={"tensors": 0, "histograms": 0}).Reload()


def test_exactly_these_curves(events: Any) -> None:
    read = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert read == {
        "time/round": [(1, 2.0), (2, 2.0)],
        "loss/train": [(1, 0.5), (2, 0.5)],
        "accuracy/before": [(1, 0.25), (2, 0.5)],
        "personal_share/total": [(1, 0.125), (2, 0.125)],
        "traffic/up_bytes": [(1, 96.0), (2, 96.0)],
        "time/samples_per_second": [(1, 150.0), (2, 150.0)],
    }


def test_the_layout_puts_the_reported_metric_first(events: Any) -> None:
    content = events.SummaryMetadata("custom_scalars__config__").plugin_data
    (event,) = events.Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    assert content.plugin_name == "custom_scalars"
    first = layout.category[0].chart[0]
    assert (layout.category[0].title, first.title) == ("1. reported", "accuracy, all clients, before local training")
    assert list(first.multiline.tag) == ["^accuracy_all/before$"]


def test_hparams_are_the_settings_of_the_run(events: Any) -> None:
    """And no curve is called hp_metric."""
    found = {}
    for name in ("experiment", "session_start_info"):
        content = events.SummaryMetadata(f"_hparams_/{name}").plugin_data.content
        found[name] = HParamsPluginData.FromString(content)
    values = found["session_start_info"].session_start_info.hparams
    assert {key: value.string_value or value.number_value for key, value in values.items()} == {"algorithm": "FedOBP"}
    (metric,) = found["experiment"].experiment.metric_infos
    assert metric.name.tag == "accuracy_all/before"
    assert not [name for name in events.Tags()["scalars"] if "hp" in name]


def test_a_run_has_fewer_than_20_curves() -> None:
    """With validation data, fine-tuning and held-out clients, which is all that there can be."""
    data = ToyData()
    data.validation_share, data.held_out_clients = 0.2, 0.2
    data.setup(1)
    config = LoopConfig(rounds=1, batch_size=8, finetune_epochs=1)
    loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), Classification(ToyNet), FedPer(), data, config)
    metrics = [Metric.named(name, better) for name, better in loop.task.better.items()]
    columns = loop.history.columns()
    curves = {tag(column, metrics) for column in columns if has_curve(column, metrics)}
    assert len(curves | {"time/samples_per_second"}) < 20
    assert {"accuracy_all/before", "accuracy_all/finetuned", "accuracy_all/global", "traffic/up_bytes"} <= curves
    assert {"accuracy_held_out/before", "accuracy_held_out/after", "accuracy_held_out/finetuned"} <= curves
    assert len({tag(column, metrics) for column in columns}) == len(columns)  # held-out clients are not participants


def test_settings_are_flat() -> None:
    text = "algorithm: {class_path: a.FedOBP, init_args: {quantile: 0.9, layers: [x, y]}}\nrun_dir: runs/1\nseed: 3\n"
    expected = {"algorithm": "FedOBP", "algorithm.quantile": 0.9, "algorithm.layers": "['x', 'y']", "seed": 3}
    assert settings(text) == expected


def test_spread_over_the_clients_leaves_out_nan(events: Any) -> None:
    assert events.Tags()["histograms"] == ["accuracy_spread/before"]
    first, second = events.Histograms("accuracy_spread/before")
    value = first.histogram_value
    assert (first.step, second.step) == (1, 2)
    assert (value.num, value.min, value.max, value.sum) == (3, 0.0, 1.0, 1.5)
    filled = [(edge, count) for edge, count in zip(value.bucket_limit, value.bucket, strict=True) if count]
    assert [count for _, count in filled] == [1, 1, 1]
    assert [edge for edge, _ in filled] == pytest.approx([0.05, 0.55, 1.0])


def test_picture_and_config(events: Any) -> None:
    (picture,) = events.Images("data/partition")
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    assert (picture.width, picture.height) == (300, 200)
    (text,) = events.Tensors("config/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert lines == [f"    {line}" for line in CONFIG.splitlines()]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("acc_after_pooled", "accuracy/after_pooled"),
        ("all_acc_before_worst10", "accuracy_all/before_worst10"),
        ("all_global_acc", "accuracy_all/global"),
        ("held_out_acc_before", "accuracy_held_out/before"),
        ("all_global_rmse", "rmse_all/global"),
        ("rmse_before", "rmse/before"),
        ("all_train_loss", "loss_all/train"),
        ("all_global_loss_pooled", "loss_all/global_pooled"),
        ("personal_count", "personal_share/count"),
        ("down_bytes", "traffic/down_bytes"),
        ("eval_seconds", "time/eval"),
        ("all_personal_share", "personal_share_all/total"),
        ("train_acc", "train/acc"),
        ("cohort_size", "other/cohort_size"),
    ],
)
def test_groups(column: str, expected: str) -> None:
    assert tag(column, METRICS) == expected


def test_loss_is_grouped_without_being_a_metric_too() -> None:
    assert tag("train_loss", [Metric()]) == "loss/train"


def test_spread_of_plain_numbers_has_its_own_range(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, METRICS)
    writer.round(RoundRecord(1, {}, {"rmse_before": np.array([10.0, 20.0, 30.0])}), samples=1)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    value = events.Histograms("rmse_spread/before")[0].histogram_value
    filled = [edge for edge, count in zip(value.bucket_limit, value.bucket, strict=True) if count]
    assert filled == pytest.approx([11.0, 21.0, 30.0])


@pytest.mark.parametrize("values", [[1e37, 1e37 * (1 + 2e-16)], [3e38, 3e38], [-1.7e308, 1.7e308], [2.0, 2.0], [0.0]])
def test_a_histogram_of_diverging_clients_can_be_drawn(values: list[float], tmp_path: Path) -> None:
    """Their losses are finite, but too large or too close for numpy's own bins."""
    writer = TensorBoardWriter(tmp_path, METRICS)
    writer.round(RoundRecord(1, {}, {"loss_before": np.array(values)}, {}, {}), samples=1)
    writer.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    (event,) = events.Histograms("loss_spread/before")
    assert event.histogram_value.num == sum(event.histogram_value.bucket) == len(values)


def test_usual_values_have_the_bins_of_numpy() -> None:
    values = np.random.default_rng(0).normal(size=50)
    assert np.array_equal(bin_edges(values), np.histogram_bin_edges(values, 20))
