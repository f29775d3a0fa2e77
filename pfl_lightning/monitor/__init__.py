"""The view of a run for people: console, metrics.csv, TensorBoard, summary.json. Only rank 0 has a monitor."""

from pfl_lightning.metrics.record import Metric, RoundRecord
from pfl_lightning.monitor.monitor import Monitor
from pfl_lightning.monitor.tables import read_metrics

__all__ = ["Metric", "Monitor", "RoundRecord", "read_metrics"]
