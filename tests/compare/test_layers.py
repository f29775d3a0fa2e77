from __future__ import annotations

from pfl_lightning.compare.layers import class_name, merge


def test_later_layers_win_key_by_key():
    assert merge([{"loop": {"rounds": 1, "batch": 2}}, {"loop": {"rounds": 3}}]) == {"loop": {"rounds": 3, "batch": 2}}


def test_another_class_starts_from_its_own_defaults():
    below = {"algorithm": {"class_path": "FedOBP", "init_args": {"first_visit": "initial"}}}
    assert merge([below, {"algorithm": {"class_path": "APFL"}}]) == {"algorithm": {"class_path": "APFL"}}
    assert merge([below, {"algorithm": "APFL"}]) == {"algorithm": "APFL"}


def test_the_same_class_keeps_its_settings():
    below = {"algorithm": {"class_path": "FedOBP", "init_args": {"first_visit": "initial"}}}
    above = {"algorithm": {"class_path": "pfl_lightning.algorithms.FedOBP", "init_args": {"quantile": 0.9}}}
    assert merge([below, above])["algorithm"]["init_args"] == {"first_visit": "initial", "quantile": 0.9}
    assert merge([below, {"algorithm": "FedOBP"}])["algorithm"]["init_args"] == {"first_visit": "initial"}
    assert merge([below, {"algorithm": {"init_args": {"quantile": 0.9}}}])["algorithm"]["class_path"] == "FedOBP"


def test_plain_text_stays_text():
    assert merge([{"loop": {"balance_by": "auto"}}, {"loop": {"balance_by": "auto"}}]) == {
        "loop": {"balance_by": "auto"}
    }
    assert merge([{"seed": 1}, {"seed": None}]) == {"seed": None}


def test_class_name():
    assert class_name({"algorithm": "a.b.C"}, "algorithm") == "C"
    assert class_name({"algorithm": {"init_args": {}}}, "algorithm") is None
    assert class_name({}, "algorithm") is None
