from __future__ import annotations

import copy

import pytest

from pfl_lightning.compare.identity import identity

CONFIG = {
    "algorithm": {"class_path": "a.FedAvg", "init_args": {"weighting": "samples", "lr": 1.0}},
    "data": {"class_path": "d.Data", "init_args": {"seed": 0, "alpha": 0.3}},
    "fabric": {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "precision": "32-true", "timeout": 600.0},
    "seed": 0,
}


def changed(path: str, value: object) -> dict:
    config = copy.deepcopy(CONFIG)
    *parents, last = path.split("/")
    place = config
    for parent in parents:
        place = place[parent]
    place[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run_dir", "/tmp/x"),
        ("resume", "auto"),
        ("fabric/devices", 8),
        ("fabric/accelerator", "cuda"),
        ("fabric/num_nodes", 4),
        ("fabric/timeout", 1.0),
        ("fabric/reuse_memory", False),
        ("data/init_args/root", None),
    ],
)
def test_placement_and_null_do_not_matter(path, value):
    assert identity(changed(path, value)) == identity(CONFIG)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", 1),
        ("seed", False),
        ("algorithm/class_path", "b.FedAvg"),
        ("algorithm/init_args/lr", 1),
        ("algorithm/init_args/lr", "1.0"),
        ("algorithm/init_args/lr", None),
        ("algorithm/init_args/extra", {}),
        ("data/init_args/seed", 1),
        ("data/init_args/alpha", 0.30000000000000004),
        ("fabric/precision", "bf16-mixed"),
        ("fabric/unknown", 1),
        ("unknown", 1),
    ],
)
def test_everything_else_matters(path, value):
    assert identity(changed(path, value)) != identity(CONFIG)


def test_order_of_keys_does_not_matter_and_order_of_lists_does():
    assert identity(dict(reversed(CONFIG.items()))) == identity(CONFIG)
    assert identity({"a": [1, 2]}) != identity({"a": [2, 1]})


def test_keys_of_other_types_are_kept_apart():
    one, others = {"a": {1: 0}}, ["1", "int:1", "str:1", "str:'int:1'"]
    ids = [identity(one), *(identity({"a": {key: 0}}) for key in others)]
    assert len(set(ids)) == len(ids)


def test_a_run_from_before_a_key_existed_is_found_if_the_key_has_the_old_meaning():
    old = {"loop": {"rounds": 4}, "seed": 0}
    new = {"loop": {"rounds": 4, "test_every": 1}, "callbacks": [], "loggers": [], "seed": 0}
    assert identity(new) == identity(old)
    for changed in ({"loop": {"rounds": 4, "test_every": 2}}, {"callbacks": [{"class_path": "EarlyStopping"}]}):
        assert identity({**new, **changed}) != identity(old)
    assert identity({**new, "loop": {"rounds": 4, "test_every": True}}) != identity(old)
