"""Cells: precedence of settings, controls, the partition, and configs that would be shown twice."""

from __future__ import annotations

import pytest

from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.controls import COLLABORATION_OFF
from pfl_lightning.compare.plan import Entry
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.comparisons import ToyResolver, experiment


def entries(**content) -> dict[tuple[str, str], Entry]:
    stage = Comparison(experiment(**content), ToyResolver()).stage({})
    return {(entry.method, entry.column): entry for entry in stage.entries}


def config(entry: Entry):
    return entry.cells[0].config


def test_settings_win_in_the_documented_order(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text("loop: {rounds: 11, batch_size: 12, local_epochs: 13, eval_every: 14, participation: 0.5}")
    method = {"loop": {"batch_size": 22}, "loop.local_epochs": 23, "loop.eval_every": 24, "loop.participation": 0.6,
              "at": {"participation=0.8": {"loop.participation": 0.9}}}  # fmt: skip
    found = entries(
        base=str(base),
        methods={"FedAvg": method},
        set={"loop.eval_every": 34},
        grid={"loop.participation": [0.7, 0.8]},
        controls=[],
    )
    loop = config(found["FedAvg", "participation=0.7"])["loop"]
    assert [loop[k] for k in ("rounds", "batch_size", "local_epochs", "eval_every", "participation")] == [
        11, 22, 23, 34, 0.7,
    ]  # fmt: skip
    assert config(found["FedAvg", "participation=0.8"])["loop"]["participation"] == 0.9


def test_a_column_may_have_a_base_of_its_own(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"loop: {{rounds: {len(name) if name == 'one' else 7}}}")
    grid = {"set": {name: {"base": str(tmp_path / f"{name}.yaml")} for name in ("one", "two")}}
    found = entries(grid=grid, controls=[])
    assert [config(found["FedAvg", name])["loop"]["rounds"] for name in ("one", "two")] == [3, 7]


def test_the_label_names_the_class_unless_an_algorithm_is_given(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text("algorithm: {class_path: FedOBP, init_args: {quantile: 0.5}}")
    methods = {"FedAvg": None, "q=0.7": {"algorithm.quantile": 0.7}, "mine": {"algorithm": "Ditto"}, "FedOBP": None,
               "more": {"extends": "FedAvg", "loop.batch_size": 3}}  # fmt: skip
    found = entries(base=str(base), methods=methods, controls=[])
    algorithms = {label: config(entry)["algorithm"] for (label, _), entry in found.items()}
    assert algorithms["FedAvg"] == {"class_path": "toy.FedAvg", "init_args": {"weighting": "samples"}}
    assert algorithms["q=0.7"] == {"class_path": "toy.FedOBP", "init_args": {"quantile": 0.7}}
    assert algorithms["FedOBP"] == {"class_path": "toy.FedOBP", "init_args": {"quantile": 0.5}}
    assert algorithms["mine"]["class_path"] == "toy.Ditto"
    assert algorithms["more"]["class_path"] == "toy.FedAvg"


@pytest.mark.parametrize(
    "content",
    [
        {"methods": {"FedAvg": {"algorithm": "FedOBP"}}},
        {"methods": {"FedAvg+FT": {"algorithm": "FedOBP"}}},
        {"methods": ["FedAvg"], "set": {"algorithm": "FedOBP"}},
        {"methods": ["FedAvg"], "grid": {"algorithm": ["FedOBP", "FedAvg"]}},
        {"methods": {"mine": {"algorithm": "FedOBP"}, "FedAvg": {"extends": "mine"}}},
    ],
)
def test_a_row_with_the_name_of_a_method_has_its_results(content):
    with pytest.raises(ConfigError, match=r"methods\.FedAvg.*: its algorithm is FedOBP; give the row another label"):
        entries(**content, controls=[])


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match=r"methods\.FedXYZ: algorithm: no class FedXYZ"):
        entries(methods=["FedXYZ"])


def test_controls_are_added_and_can_be_switched_off():
    labels = [label for label, _ in entries()]
    assert labels == ["FedAvg", "FedOBP", "Local", "FedAvg+FT"]
    assert [label for label, _ in entries(controls=[])] == ["FedAvg", "FedOBP"]
    assert [label for label, _ in entries(controls=["Local"])] == ["FedAvg", "FedOBP", "Local"]


def test_fine_tuning_takes_the_epochs_of_a_visit_and_reports_its_own_moment():
    entry = entries(report={"metric": "all_acc_before_pooled"})["FedAvg+FT", ""]
    assert config(entry)["loop"]["finetune_epochs"] == 5
    assert entry.metric.column == "all_acc_finetuned_pooled"
    assert entries(methods={"FedAvg+FT": {"loop.finetune_epochs": 2}})["FedAvg+FT", ""].cells[0].config["loop"][
        "finetune_epochs"
    ] == 2  # fmt: skip


def test_a_method_can_be_run_alone():
    entry = entries(methods={"Ditto": {"algorithm.lam": 3.0}}, grid={"algorithm.lam": [4.0, 5.0]})[
        "Ditto, alone", "lam=4.0"
    ]
    assert entry.control
    assert config(entry)["algorithm"]["init_args"] == {"lam": 0.0, "first_visit": "initial"}


def test_controls_do_without_keys_of_another_algorithm():
    found = entries(methods=["FedOBP"], grid={"algorithm.quantile": [0.5, 0.9]})
    assert found["Local", "quantile=0.5"].cells[0].id == found["Local", "quantile=0.9"].cells[0].id
    assert found["FedOBP", "quantile=0.5"].cells[0].id != found["FedOBP", "quantile=0.9"].cells[0].id


def test_a_grid_without_effect_is_refused():
    at = {f"alpha={alpha}": {"data.alpha": 0.3} for alpha in (0.1, 0.5)}
    with pytest.raises(ConfigError, match=r"FedAvg has the same config at 'alpha=0\.1' and at"):
        entries(methods={"FedAvg": {"at": at}}, grid={"data.alpha": [0.1, 0.5]})


def test_seeds_change_the_run_and_not_the_partition():
    cells = entries(seeds=[3, 4])["FedAvg", ""].cells
    assert [cell.config["seed"] for cell in cells] == [3, 4]
    assert [cell.config["data"]["init_args"]["seed"] for cell in cells] == [0, 0]
    assert cells[0].id != cells[1].id


def test_the_partition_follows_the_seed_where_asked_and_stays_where_the_config_fixes_it():
    cells = entries(seeds=[3], partition_seed="run")["FedAvg", ""].cells
    assert cells[0].config["data"]["init_args"]["seed"] is None
    cells = entries(seeds=[3], set={"data.seed": 9})["FedAvg", ""].cells
    assert cells[0].config["data"]["init_args"]["seed"] == 9


def test_rows_with_the_same_config_share_their_cells():
    methods = {"FedAvg": None, "again": {"algorithm": "FedAvg", "report": {"select": "best"}}}
    stage = Comparison(experiment(methods=methods, controls=[]), ToyResolver()).stage({})
    assert len(stage.entries) == 2
    assert len(stage.cells) == 1


def test_metrics_that_no_run_would_record_are_refused():
    with pytest.raises(ConfigError, match=r"set loop\.eval_every above 0"):
        entries(set={"loop.eval_every": 0})
    with pytest.raises(ConfigError, match=r"needs loop\.finetune_epochs above 0"):
        entries(report={"metric": "all_acc_finetuned"}, controls=[])
    with pytest.raises(ConfigError, match=r"report\.metric: 'accuracy' is not allowed"):
        entries(report={"metric": "accuracy"})


def test_the_cost_is_known_in_advance():
    cell = entries()["FedAvg", ""].cells[0]
    assert (cell.rounds, cell.visits, cell.cost) == (4, 8, 40)


def test_every_method_accepts_the_settings_that_switch_its_collaboration_off():
    from pfl_lightning import algorithms

    for name, keys in COLLABORATION_OFF.items():
        settings = {key.removeprefix("algorithm."): value for key, value in keys.items()}
        getattr(algorithms, name)(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})


def test_paths_are_not_part_of_the_identity(tmp_path):
    ids = set()
    for name in ("a", "b"):
        path = tmp_path / f"{name}.yaml"
        path.write_text("loop: {rounds: 9}")
        ids.add(entries(base=str(path))["FedAvg", ""].cells[0].id)
    assert len(ids) == 1
