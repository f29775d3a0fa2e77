"""An experiment file that extends another one, and the variants of a file."""

from __future__ import annotations

import pytest

from pfl_lightning.compare.file_layers import layered, with_variant
from pfl_lightning.foundation.errors import ConfigError

TABLE = {
    "name": "table",
    "methods": {"FedAvg": None, "FedCAC": {"algorithm.tau": 0.5, "algorithm.beta": 100}},
    "set": {"loop.rounds": 200, "loop.batch_size": 10},
    "report": {"metric": "acc_after", "select": "best"},
    "caption": "Table 1.",
    "paper": {"FedAvg": 1},
    "variants": {"short": {"caption": "Shortened.", "set": {"loop.rounds": 20}, "seeds": [1]}},
}


def test_a_file_changes_parts_of_the_one_it_extends():
    figure = {"set": {"loop.eval_every": 5}, "methods": {"FedCAC": {"algorithm.beta": 3}, "FedBN": {}}, "paper": {}}
    made = layered([TABLE, figure])
    assert made["set"] == {"loop.rounds": 200, "loop.batch_size": 10, "loop.eval_every": 5}
    assert made["methods"] == {
        "FedAvg": None,
        "FedCAC": {"algorithm.tau": 0.5, "algorithm.beta": 3},
        "FedBN": {},
    }
    assert made["paper"] == {}
    assert made["report"] == TABLE["report"]
    assert "name" not in made, "two files with one name would share a folder"


def test_rows_that_are_a_list_are_merged_too():
    made = layered([{"methods": ["FedAvg", "FedPer"]}, {"methods": ["FedPer", "FedBN"]}])
    assert list(made["methods"]) == ["FedAvg", "FedPer", "FedBN"]


def test_a_variant_says_so_in_its_name_and_caption():
    made = with_variant(TABLE, "short", "file")
    assert (made["name"], made["caption"]) == ("table-short", "Shortened. Table 1.")
    assert made["set"] == {"loop.rounds": 20, "loop.batch_size": 10}
    assert made["seeds"] == [1]
    assert "variants" not in made
    plain = with_variant(TABLE, None, "file")
    assert (plain["name"], plain["set"]) == ("table", TABLE["set"])


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({}, "--variant: 'short' is not allowed; the experiment has no variants"),
        ({"tiny": {}}, "--variant: 'short' is not allowed; use tiny"),
        ({"short": {"seeds": [1]}}, "variants.short.caption: '' is not allowed; use a text"),
        ({"short": {"caption": "Less.", "name": "x"}}, "variants.short: 'name' is not allowed"),
        ({"short": 3}, "variants.short: 3 is not allowed; use keys with values"),
    ],
)
def test_mistakes_end_in_one_line(variants, message):
    with pytest.raises(ConfigError) as error:
        with_variant({"methods": ["FedAvg"], "variants": variants}, "short", "file")
    assert message in str(error.value)
