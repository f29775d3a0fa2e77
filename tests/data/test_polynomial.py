"""The three settings of polynomial regression."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from pfl_lightning.data import Polynomial
from pfl_lightning.foundation.errors import ConfigError

CPU = torch.device("cpu")


def made(run_seed: int = 0, **settings: object) -> Polynomial:
    data = Polynomial(**settings)  # type: ignore[arg-type]
    data.setup(run_seed)
    return data


@pytest.mark.parametrize("setting", [1, 2, 3])
@pytest.mark.parametrize("offset", ["client", "coefficient"])
def test_clients_share_the_lowest_coefficients_only(setting, offset):
    data = made(setting=setting, offset=offset)
    shared = 4 - setting
    assert data.shared.tolist() == [True] * shared + [False] * setting
    assert (data.coefficients[:, :shared] == [0, -6, 18, -12][:shared]).all()
    offsets = data.coefficients[:, shared:] - np.array([0, -6, 18, -12])[shared:]
    assert len(np.unique(offsets.round(9))) == 10 * (setting if offset == "coefficient" else 1)
    assert np.abs(offsets).max() <= 10


def test_unequal_segments_cover_the_curve_in_order():
    data = made(segments="unequal", num_clients=10, points=1000)
    sizes = (data.train_sizes + data.test_sizes).tolist()
    assert len(set(sizes)) > 5
    assert 990 <= sum(sizes) <= 1000
    xs = [data.samples.x[torch.cat([data.train_indices(c), data.test_indices(c)])] for c in range(10)]
    assert [len(x) for x in xs] == sizes
    assert all(float(a.max()) < float(b.min()) for a, b in itertools.pairwise(xs))
    assert float(xs[-1].max()) > 0.97
    assert data.test_sizes.tolist() == [max(1, round(0.2 * size)) for size in sizes]


def test_train_targets_are_noisy_and_test_targets_the_curve():
    data = made(points=4000, num_clients=4)
    errors: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for client in range(4):
        for kind, indices in {"train": data.train_indices(client), "test": data.test_indices(client)}.items():
            x, y = (t.double().numpy()[:, 0] for t in data.batch(indices, CPU))
            errors[kind].append(y - np.polynomial.polynomial.polyval(x, data.coefficients[client]))
    assert np.abs(np.concatenate(errors["test"])).max() < 1e-5
    assert np.concatenate(errors["train"]).std() == pytest.approx(0.1, rel=0.05)


def test_segments_do_not_overlap_and_both_parts_cover_them():
    data = made()
    xs = [data.samples.x[data.train_indices(c)] for c in range(10)]
    assert all(float(a.max()) < float(b.min()) for a, b in itertools.pairwise(xs))
    assert data.train_sizes.tolist() == [80] * 10
    assert data.test_sizes.tolist() == [20] * 10
    tests = [data.samples.x[data.test_indices(c)] for c in range(10)]
    assert all(float(t.max() - t.min()) > 0.05 for t in tests)
    whole = made(segments=False)
    assert all(float(whole.samples.x[whole.train_indices(c)].max()) > 0.9 for c in range(10))


def test_the_seed_decides():
    assert torch.equal(made(1).samples.y, made(1).samples.y)
    assert not torch.equal(made(1).samples.y, made(2).samples.y)
    assert torch.equal(made(1, seed=5).samples.y, made(2, seed=5).samples.y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"setting": 4}, "setting: 4 is not allowed; use 1, 2 or 3"),
        ({"points": 15}, "points: 15 is not allowed; use at least 20"),
        ({"segments": "some"}, "segments: 'some' is not allowed; use true, false or unequal"),
        ({"offset": "x"}, "offset: 'x' is not allowed"),
        ({"noise": -0.1}, "noise: -0.1 is not allowed"),
        ({"test_share": 1.0}, "test_share: 1.0 is not allowed"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Polynomial(**settings)


def test_validation_points_come_from_the_training_points():
    data, whole = made(validation_share=0.25), made()
    assert data.train_sizes.tolist() == [60] * 10
    assert data.validation_sizes.tolist() == [20] * 10
    assert torch.equal(data.test_indices(3), whole.test_indices(3))
    kept = torch.cat([data.train_indices(3), data.validation_indices(3)])
    assert sorted(kept.tolist()) == sorted(whole.train_indices(3).tolist())
