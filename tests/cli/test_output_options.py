"""What pfl-fit prints: `--quiet`, `--json`, and which clients evaluations test."""

from __future__ import annotations

import json

from pfl_lightning.cli import fit
from tests.helpers.tiny_runs import fit_images


def test_quiet_prints_nothing_and_json_the_summary(tmp_path, capfd):
    words = ["--algorithm", "FedAvg", "--task.net", "SmallCNN", "--loop.participation", "0.02", "--loop.rounds", "1"]
    words += ["--loop.eval_every", "0", "--fabric.devices", "1"]
    assert fit.run([*words, "--run_dir", str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capfd.readouterr().out == ""
    assert fit.run([*words, "--run_dir", str(tmp_path / "json"), "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads((tmp_path / "json/summary.json").read_text())
    assert "quiet:" not in (tmp_path / "quiet/config.yaml").read_text()


def test_a_run_says_which_clients_its_evaluations_test(tmp_path, capfd):
    for sample, said in (("3", True), ("null", False)):
        fit_images(tmp_path / sample, "FedAvg", "--loop.eval_clients", sample)
        lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
        assert ("evaluated 3 of 4 clients, drawn once from the seed" in lines) is said
        assert ("clients that evaluations test 3" in lines) is said
