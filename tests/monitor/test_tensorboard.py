"""TensorBoard events, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.monitor import Metric, RoundRecord
from pfl_lightning.monitor.tensorboard import TensorBoardWriter, bin_edges, tag

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
        "personal_share_layers/net.head.weight": [(1, 0.25), (2, 0.25)],
        "traffic/up_bytes": [(1, 96.0), (2, 96.0)],
        "time/fit": [(1, 1.5), (2, 1.5)],
        "time/samples_per_second": [(1, 150.0), (2, 150.0)],
    }


def test_no_hp_metric(events: Any) -> None:
    names = [name for tags in events.Tags().values() if isinstance(tags, list) for name in tags]
    assert names
    assert not [name for name in names if "hp" in name or "hparams" in name]


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
        ("all_global_rmse", "rmse_all/global"),
        ("rmse_before", "rmse/before"),
        ("all_train_loss", "loss_all/train"),
        ("all_global_loss_pooled", "loss_all/global_pooled"),
        ("personal_count", "personal_share/count"),
        ("down_bytes", "traffic/down_bytes"),
        ("eval_seconds", "time/eval"),
        ("all_personal_share", "personal_share_all/total"),
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
