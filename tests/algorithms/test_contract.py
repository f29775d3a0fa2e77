"""What every algorithm promises, tested once for all of them."""

from __future__ import annotations

import dataclasses
import math
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_origin, get_type_hints

import pytest
import torch
from lightning.fabric import Fabric
from torch.optim import SGD

import pfl_lightning.algorithms
from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import FedAvg, FedOBP, FedProx, Local, PFedSOP
from pfl_lightning.engine.cohort import draw_cohort
from pfl_lightning.foundation.errors import ConfigError, DivergedError
from pfl_lightning.foundation.state import State
from pfl_lightning.nets import MLP
from pfl_lightning.tasks import Regression
from tests.algorithms.test_features import Plain, built
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import ToyData, disturbed_summary, fingerprint, interrupted_summary, toy_loop, toy_summary


def collect(attribute: str) -> list[Algorithm]:
    """The algorithms that the test files beside this one name for a part of the contract."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    modules = [import_module(f"{__package__}.{file.stem}") for file in files if file != Path(__file__)]
    return [algorithm for module in modules for algorithm in getattr(module, attribute, [])]


def name(algorithm: Algorithm) -> str:
    settings = dataclasses.fields(algorithm)  # type: ignore[arg-type]
    changed = [f"{f.name}={v}" for f in settings if (v := getattr(algorithm, f.name)) != f.default]
    return "-".join([type(algorithm).__name__, *changed])


ALGORITHMS = collect("CONTRACT")
"""At least one of each exported algorithm, with settings under which it does something."""
LIKE_FEDAVG = collect("LIKE_FEDAVG")
"""Degenerate settings that must be FedAvg, bit for bit."""
LIKE_UNIFORM_FEDAVG = collect("LIKE_UNIFORM_FEDAVG")
"""Degenerate settings that must be FedAvg with equal weights."""
LIKE_LOCAL = collect("LIKE_LOCAL")
"""Degenerate settings whose tested models must be those of local training."""

WORK_ON_FEATURES = ["FedPAC", "Floco", "FlocoPlus", "FLUTE", "KNNPer", "PFedFDA"]
"""Methods that need classes, and features that go straight into a head."""

ANY_NUMBER = {("FedDPA", "threshold")}
"""Settings of which every number means something."""

# all tests of an algorithm in a row, so that they share its runs
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name, scope="module")
SETTINGS = {"rounds": 3, "participation": 0.6, "eval_every": 1}
WITHOUT_ROUNDS = {key: value for key, value in SETTINGS.items() if key != "rounds"}
RUNS: dict[tuple[object, ...], dict[str, Any]] = {}


def alone(algorithm: Algorithm, **settings: Any) -> dict[str, Any]:
    """The summary of a run on one rank that nobody disturbs, made once."""
    key = (name(algorithm), *sorted(settings.items()))
    if key not in RUNS:
        RUNS[key] = toy_summary(1, algorithm, **settings)
    return RUNS[key]


@pytest.fixture(scope="module")
def resumed(algorithm, tmp_path_factory):
    """Where the run that is resumed has its checkpoints."""
    return tmp_path_factory.mktemp("resumed")


@pytest.fixture(scope="module")
def on_2_ranks(algorithm, resumed):
    """A run whose rounds are given up, and the first round of the resumed run. Processes are started once for both."""

    def work(_fabric: Fabric) -> tuple[Any, ...]:
        disturbed = disturbed_summary(2, algorithm, 1, [2, 9, 23, 40, 60], **SETTINGS)
        return disturbed, interrupted_summary(resumed, {1: 2}, algorithm, **WITHOUT_ROUNDS)

    return run_on_ranks(work, 2)[0]


@pytest.fixture(scope="module")
def on_3_ranks(algorithm, resumed, on_2_ranks):
    """A run that nobody disturbs, and the second round of the resumed run."""

    def work(_fabric: Fabric) -> tuple[Any, ...]:
        whole = toy_summary(3, algorithm, **SETTINGS)
        return whole, interrupted_summary(resumed, {2: 3}, algorithm, **WITHOUT_ROUNDS)

    return run_on_ranks(work, 3)[0]


def test_every_exported_algorithm_is_here():
    assert {type(a).__name__ for a in ALGORITHMS} == set(pfl_lightning.algorithms.__all__)


@pytest.mark.parametrize("kind", pfl_lightning.algorithms.__all__)
def test_the_settings_that_methods_share_are_checked_by_each(kind):
    made = getattr(pfl_lightning.algorithms, kind)
    names = {field.name for field in dataclasses.fields(made)}
    for key in names & {"weighting", "bn_buffers"}:
        with pytest.raises(ConfigError, match=rf"{key}: 'sum' is not allowed"):
            made(**{key: "sum"})
    for key in names & {"head", "layers"}:
        with pytest.raises(ConfigError, match=r"net\.nothing"):
            toy_loop(Fabric(accelerator="cpu", devices=1), made(**{key: ["net.nothing"]})).fit()


@pytest.mark.parametrize("kind", pfl_lightning.algorithms.__all__)
def test_every_number_and_every_choice_is_checked(kind):
    """A negative number, and a word that is none of the choices, are refused with the name of the setting."""
    made = getattr(pfl_lightning.algorithms, kind)
    types = get_type_hints(made)
    for key in [field.name for field in dataclasses.fields(made)]:
        if get_origin(types[key]) is Literal:
            bad: object = "nonsense"
        elif types[key] in (int, float, int | None, float | None) and (kind, key) not in ANY_NUMBER:
            bad = -1000
        else:
            continue
        with pytest.raises(ConfigError, match=rf"^{key}: {bad!r} is not allowed; use "):
            made(**{key: bad})


@pytest.mark.parametrize("kind", [*WORK_ON_FEATURES, "PFedSD"])
def test_methods_that_work_on_classes_refuse_numbers(kind):
    data = ToyData()
    data.setup(1)
    task = Regression(lambda spec: MLP(spec, (5,)), lambda p: SGD(p, lr=0.1))
    task.build(data.spec)
    with pytest.raises(
        ConfigError, match=rf"task: {kind.removesuffix('Plus')} works on classes; Regression on .* numbers"
    ):
        getattr(pfl_lightning.algorithms, kind)().check(task, data)


@pytest.mark.parametrize("kind", [*WORK_ON_FEATURES, "PFedSD", "Learn2pFed"])
def test_methods_that_work_on_classes_refuse_a_net_with_another_number_of_outputs(kind):
    net = built(lambda spec: Plain(SimpleNamespace(shape=spec.shape, num_classes=4), 1.0))
    with pytest.raises(
        ConfigError, match=r"needs forward\(x\) to return 3 logits per sample; it returns a tensor \[2, 4\]"
    ):
        getattr(pfl_lightning.algorithms, kind)().check(*net)


@pytest.mark.parametrize("kind", [*WORK_ON_FEATURES, "Learn2pFed"])
def test_methods_that_work_on_features_refuse_a_net_that_changes_the_outputs_of_its_head(kind):
    name = kind.removesuffix("Plus")
    with pytest.raises(ConfigError, match=rf"task.head: {name} needs a net whose output is the output of its head"):
        getattr(pfl_lightning.algorithms, kind)().check(*built(lambda spec: Plain(spec, 2.0)))


@pytest.mark.parametrize("kind", pfl_lightning.algorithms.__all__)
def test_statistics_stay_local_on_request(kind):
    made = getattr(pfl_lightning.algorithms, kind)
    if "bn_buffers" not in {field.name for field in dataclasses.fields(made)} or kind == "Learn2pFed":
        pytest.skip("it has no such setting")
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), made(bn_buffers="local"), rounds=1, eval_every=0)
    loop.fit()
    statistics = slice(loop.server.layout.num_parameters, None)
    assert torch.equal(loop.server.vector[statistics], loop.server.initial[statistics])


CORE = [algorithm for algorithm in ALGORITHMS if type(algorithm) in (FedAvg, FedProx, FedOBP)]


@pytest.mark.parametrize("algorithm", CORE, ids=name)
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_eight_rounds_are_the_same_on_1_2_and_3_ranks(algorithm, participation):
    settings = {"rounds": 8, "participation": participation, "eval_every": 4}
    one = toy_summary(1, algorithm, **settings)
    for world in (2, 3):
        assert fingerprint(toy_summary(world, algorithm, **settings)) == fingerprint(one)


@each_algorithm
def test_a_run_is_the_same_on_1_and_3_ranks(algorithm, on_3_ranks):
    """Those on two ranks below are disturbed, and end the same."""
    assert fingerprint(on_3_ranks[0]) == fingerprint(alone(algorithm, **SETTINGS))


@each_algorithm
def test_idle_ranks_neither_hang_nor_change_anything(algorithm):
    settings = {"num_clients": 2, "participation": 0.5, "rounds": 2, "eval_every": 1}
    assert fingerprint(toy_summary(4, algorithm, **settings)) == fingerprint(toy_summary(1, algorithm, **settings))


@each_algorithm
def test_a_client_that_is_not_drawn_keeps_its_state(algorithm):
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, participation=0.4, eval_every=1, rounds=4)
    for round_ in range(1, 5):
        held = {c: {k: t.clone() for k, t in s.items()} for c, s in loop.store.states.items()}
        loop.round()
        for client in set(held) - set(draw_cohort(1, round_, 7, 0.4)):
            state = loop.store.get(client)
            assert state is not None
            assert state.keys() == held[client].keys()
            assert all(torch.equal(state[k], held[client][k]) for k in state)


@each_algorithm
def test_evaluation_changes_nothing(algorithm):
    never = toy_summary(1, algorithm, **{**SETTINGS, "eval_every": 0})
    for key in ("model_sha256", "clients_sha256"):
        assert never[key] == alone(algorithm, **SETTINGS)[key]


@each_algorithm
def test_fine_tuning_copies_changes_nothing_but_its_own_columns(algorithm):
    plain, tuned = alone(algorithm, rounds=2), toy_summary(1, algorithm, rounds=2, finetune_epochs=2)
    assert plain["model_sha256"] == tuned["model_sha256"]
    assert plain["clients_sha256"] == tuned["clients_sha256"]
    assert tuned["last"]["all_acc_before"] == plain["last"]["all_acc_before"]
    assert "all_loss_finetuned" not in plain["last"]
    assert tuned["last"]["all_loss_finetuned"] != tuned["last"]["all_loss_before"]


@each_algorithm
def test_resuming_on_2_then_3_then_1_ranks_equals_no_stop(algorithm, resumed, on_2_ranks, on_3_ranks):
    assert [summary["rounds"] for _, summary in (on_2_ranks, on_3_ranks)] == [1, 2]
    summary = interrupted_summary(resumed, {3: 1}, algorithm, **WITHOUT_ROUNDS)
    assert fingerprint(summary) == fingerprint(alone(algorithm, **SETTINGS))


@each_algorithm
def test_a_round_that_is_given_up_has_not_happened(algorithm, on_2_ranks):
    summary, stops = on_2_ranks[0]
    assert stops
    assert fingerprint(summary) == fingerprint(alone(algorithm, **SETTINGS))


DEGENERATE = [
    *((algorithm, FedAvg()) for algorithm in LIKE_FEDAVG),
    *((algorithm, FedAvg(weighting="uniform")) for algorithm in LIKE_UNIFORM_FEDAVG),
    *((algorithm, Local()) for algorithm in LIKE_LOCAL),
]


@pytest.mark.parametrize(("algorithm", "like"), DEGENERATE, ids=lambda a: name(a))
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_the_degenerate_setting_is_the_plain_method(algorithm, like, participation):
    momentum = 0.0 if isinstance(algorithm, PFedSOP) else 0.5
    settings = {"rounds": 6, "participation": participation, "momentum": momentum}
    one, other = toy_summary(1, algorithm, **settings), alone(like, **settings)
    for key in ("last", "best", "best_per_client_visits", "best_per_client_evaluations"):
        personal = [k for k in other[key] if "global" not in k]
        for column in personal:  # losses differ by rounding where one of them tests clients together
            assert one[key][column] == pytest.approx(other[key][column], rel=1e-6), column
    if not isinstance(like, Local):
        assert one["model_sha256"] == other["model_sha256"]


@each_algorithm
def test_it_is_a_dataclass_that_sets_nothing_on_itself(algorithm):
    before = dataclasses.asdict(algorithm)
    toy_summary(1, algorithm, rounds=1)
    assert dataclasses.asdict(algorithm) == before == vars(algorithm)


def toy_after_a_round(algorithm, test_every):
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, rounds=3, eval_every=1, test_every=test_every)
    loop.round()
    return loop


def floats(state: State | None) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in (state or {}).items() if tensor.is_floating_point() and tensor.numel()}


@each_algorithm
@pytest.mark.parametrize("test_every", [1, 0], ids=["tested", "not_tested"])
def test_a_private_value_that_is_nan_ends_the_run_or_has_no_effect(test_every, algorithm):
    """Uploads are not all that can diverge: Ditto's own models, for example, are never sent."""
    loop = toy_after_a_round(algorithm, test_every)
    for key in floats(loop.store.get(2)):
        value = floats(loop.store.states[2])[key]
        kept = value.clone()
        value.fill_(torch.nan)
        ended = ""
        try:
            record = loop.round()
        except DivergedError as error:
            ended = str(error)
        if ended:
            assert re.search(r"^client .* diverged in round 2: ", ended), key
            value.copy_(kept)  # the round has not happened, so the next value has the same start
            continue
        assert_finite(loop, record, key)
        loop = toy_after_a_round(algorithm, test_every)
    assert_finite(loop, loop.round(), "nothing is left of the others")


def assert_finite(loop, record, key):
    assert all(math.isfinite(value) for value in record.scalars.values()), key
    for client in range(7):
        assert all(tensor.isfinite().all() for tensor in floats(loop.store.get(client)).values()), key


@each_algorithm
def test_the_seed_matters(algorithm):
    one, other = alone(algorithm, rounds=2), toy_summary(1, algorithm, rounds=2, seed=2)
    assert one["clients_sha256"] != other["clients_sha256"] or one["model_sha256"] != other["model_sha256"]
