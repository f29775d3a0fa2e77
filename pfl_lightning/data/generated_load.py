"""Generated series that look like electricity load, for machines without a file of real ones."""

from __future__ import annotations

import numpy as np

from pfl_lightning.data.series import Series


def generate_load(count: int, hours: int, rng: np.random.Generator) -> Series:
    """Return `count` hourly series. Each has its own daily, weekly and yearly pattern, its own level and slow noise."""
    hour = np.arange(hours)
    series: Series = {}
    for client in range(count):
        day, week, year = rng.uniform([0.2, 0.05, 0.1], [0.5, 0.25, 0.4])
        phase = rng.normal(0, 1.5)
        daily = np.cos(2 * np.pi * (hour - 18 - phase) / 24) + 0.4 * np.cos(4 * np.pi * (hour - 9 - phase) / 24)
        weekend = (hour // 24) % 7 >= 5
        season = np.cos(2 * np.pi * hour / 8766 + rng.uniform(0, 2 * np.pi))
        keep, noise = rng.uniform(0.7, 0.95), rng.normal(0, 0.05, hours)
        for now in range(1, hours):
            noise[now] += keep * noise[now - 1]
        level = np.exp(rng.normal(0, 1))
        series[f"load {client}"] = level * (2 + day * daily - week * weekend + year * season + noise)
    return series
