"""`--quiet` and `--json` of pfl-fit."""

from __future__ import annotations

import json

from pfl_lightning.cli import fit


def test_quiet_prints_nothing_and_json_the_summary(tmp_path, capfd):
    words = ["--algorithm", "FedAvg", "--task.net", "SmallCNN", "--loop.participation", "0.02", "--loop.rounds", "1"]
    words += ["--loop.eval_every", "0", "--fabric.devices", "1"]
    assert fit.run([*words, "--run_dir", str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capfd.readouterr().out == ""
    assert fit.run([*words, "--run_dir", str(tmp_path / "json"), "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads((tmp_path / "json/summary.json").read_text())
    assert "quiet:" not in (tmp_path / "quiet/config.yaml").read_text()
