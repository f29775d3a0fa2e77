"""CFL against numbers worked by hand: who is split from whom, and that clients are known by their ids ever after."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from pfl_lightning.algorithms import CFL
from pfl_lightning.algorithms.parts.clusters import cut, find_cluster
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.ranks import run_on_ranks
from tests.helpers.scalar import ScalarClients
from tests.helpers.visits import open_client

CONTRACT = [CFL(eps_1=100.0, eps_2=0.01, start_round=2)]
LIKE_FEDAVG = [CFL(eps_1=0.0), CFL(eps_1=100.0, eps_2=0.0, start_round=100)]
LIKE_UNIFORM_FEDAVG = [CFL(eps_1=0.0, weighting="uniform")]


@dataclass
class Scripted(CFL):
    """Local training is replaced by a prescribed update for each client and round."""

    script: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)

    def fit(self, client, server):
        client.vector += torch.tensor(self.script[server.round][client.id])


def scripted(script, num_clients, fabric=None, participation=1.0, **settings):
    return ScalarClients(
        Scripted(**{"script": script, "start_round": 0, **settings}),
        targets=[[0.0, 0.0]] * num_clients,
        sizes=[1] * num_clients,
        steps=1,
        participation=participation,
        fabric=fabric,
    )


def clusters(run: ScalarClients) -> list[list[int]]:
    """The ids in each cluster."""
    found: dict[int, list[int]] = {}
    for client in range(run.loop.data.num_clients):
        open_client(run.loop, client)
        found.setdefault(find_cluster(run.loop.engine.client, run.loop.server), []).append(client)
    return sorted(found.values())


def models(run: ScalarClients) -> list[list[float]]:
    """What each client would be tested with."""
    values = []
    for client in range(run.loop.data.num_clients):
        open_client(run.loop, client)
        run.loop.algorithm.personalize(run.loop.engine.client, run.loop.server)
        values.append(run.loop.engine.client.vector.tolist())
    return values


OPPOSED = {0: (2.0, 0.0), 1: (1.8, 0.2), 2: (-2.0, 0.0), 3: (-1.8, -0.2)}


def test_opposed_clients_part():
    """Mean update 0, longest 2: split into {0, 1} and {2, 3}, whose models move by (1.9, 0.1) and (−1.9, −0.1)."""
    run = scripted({1: OPPOSED}, 4)
    run.rounds(1)
    assert clusters(run) == [[0, 1], [2, 3]]
    assert models(run) == [pytest.approx([1.9, 0.1])] * 2 + [pytest.approx([-1.9, -0.1])] * 2
    assert run.loop.server.vector.tolist() == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("settings", [{"eps_1": 0.0}, {"eps_2": 2.1}, {"max_cross_similarity": -0.995}])
def test_no_split_when_a_condition_fails(settings):
    """The longest update has length 2; the largest cosine across is −0.993884."""
    run = scripted({1: OPPOSED}, 4, **settings)
    run.rounds(1)
    assert clusters(run) == [[0, 1, 2, 3]]


def test_a_cluster_that_moves_as_a_whole_is_not_split_in_the_first_round_either():
    """A mean update of length 1, above ε₁ = 0.4, counted from the initial model, and long updates on both sides."""
    run = scripted({1: {0: (3.0, 0.0), 1: (3.0, 0.0), 2: (-1.0, 0.0), 3: (-1.0, 0.0)}}, 4, eps_2=0.5)
    run.rounds(1)
    assert clusters(run) == [[0, 1, 2, 3]]


def test_a_limit_above_the_largest_cosine_across_allows_the_split():
    run = scripted({1: OPPOSED}, 4, max_cross_similarity=-0.99)
    run.rounds(1)
    assert clusters(run) == [[0, 1], [2, 3]]


def test_one_long_update_is_enough():
    """Lengths 2, 1, 2, 1 around a mean of 0: the longest passes ε₂ = 1.6, the shortest and the mean of all do not."""
    run = scripted({1: {0: (2.0, 0.0), 1: (1.0, 0.0), 2: (-2.0, 0.0), 3: (-1.0, 0.0)}}, 4)
    run.rounds(1)
    assert clusters(run) == [[0, 1], [2, 3]]


def test_the_first_split_comes_after_the_start_round():
    run = scripted(dict.fromkeys((1, 2), OPPOSED), 4, start_round=1)
    run.rounds(1)
    assert clusters(run) == [[0, 1, 2, 3]]
    run.rounds(1)
    assert clusters(run) == [[0, 1], [2, 3]]


def test_angles_count_and_not_lengths():
    """Updates at 0° and 10° of length 0.3, at 70° and 110° of length 2. The widest gap is 60°, between 10° and 70°.
    Products would join the second client to the long ones (0.3 · 2 · ½ = 0.3) before the first (0.09 · 0.98).
    """
    polar = ((0.3, 0), (0.3, 10), (2.0, 70), (2.0, 110))
    updates = {i: (r * math.cos(math.radians(a)), r * math.sin(math.radians(a))) for i, (r, a) in enumerate(polar)}
    run = scripted({1: updates}, 4, eps_1=100.0)
    run.rounds(1)
    assert clusters(run) == [[0, 1], [2, 3]]


def test_the_direction_of_a_half_counts_from_the_cluster_s_model():
    """All move by (5, 5) first. In round 2 the halves move by (1.9, 0.1) and (−1.9, −0.1) in the mean."""
    run = scripted({1: dict.fromkeys(range(4), (5.0, 5.0)), 2: OPPOSED}, 4, eps_1=1.0, start_round=1)
    run.rounds(2)
    assert clusters(run) == [[0, 1], [2, 3]]
    assert run.loop.server.memory["update1"].tolist() == pytest.approx([1.9, 0.1], abs=1e-5)
    assert run.loop.server.memory["update2"].tolist() == pytest.approx([-1.9, -0.1], abs=1e-5)


def test_who_was_not_drawn_follows_the_direction_and_not_the_longer_update():
    """Last update (0.5, 1), halves that moved by (10, 0) and (0.6, 0.8): cosines in the ratio 0.5 to 1.1."""
    run = scripted({}, 1)
    run.loop.server.memory["children"] = torch.tensor([1, 0, 0])
    run.loop.server.memory |= {"update1": torch.tensor([10.0, 0.0]), "update2": torch.tensor([0.6, 0.8])}
    client = open_client(run.loop, 0)
    client.memory["update"] = torch.tensor([0.5, 1.0])
    assert find_cluster(client, run.loop.server) == 2


@pytest.mark.parametrize("still", [0, 3])
def test_a_member_that_did_not_move_counts_as_a_right_angle_to_all(still):
    """Three updates of length 2 at 0°, 0° and 180°, one of zero: whatever its place, the one at 180° is cut off."""
    updates = [(2.0, 0.0), (2.0, 0.0), (-2.0, 0.0)]
    updates.insert(still, (0.0, 0.0))
    run = scripted({1: dict(enumerate(updates))}, 4, eps_1=100.0)
    run.rounds(1)
    alone = updates.index((-2.0, 0.0))
    assert clusters(run) == sorted([[alone], [client for client in range(4) if client != alone]])


def test_two_clients_are_never_split():
    run = scripted({1: {0: (2.0, 0.0), 1: (-2.0, 0.0)}}, 2)
    run.rounds(1)
    assert clusters(run) == [[0, 1]]


EVEN_ODD = {i: (2.0, 0.0) if i % 2 == 0 else (-2.0, 0.0) for i in range(8)}
ODD_PART = {i: (0.0, 0.0) if i % 2 == 0 else (0.0, 2.0) if i in (1, 5) else (0.0, -2.0) for i in range(8)}


@pytest.mark.parametrize("world", [1, 3])
def test_ids_survive_two_successive_splits(world):
    """First even against odd; then of the odd {1, 5} against {3, 7}. Positions taken for ids would give {0, 2}, {1, 3}.

    The models: even (2, 0), then odd (−2, 0) plus (0, ±2).
    """

    def work(fabric):
        run = scripted({1: EVEN_ODD, 2: ODD_PART}, 8, fabric)
        run.rounds(2)
        return {client: model for client, model in enumerate(models(run)) if run.loop.store.get(client)}

    found = {client: model for part in run_on_ranks(work, world) for client, model in part.items()}
    even, plus, minus = pytest.approx([2, 0]), pytest.approx([-2, 2]), pytest.approx([-2, -2])
    assert [found[client] for client in range(8)] == [even, plus, even, minus, even, plus, even, minus]


def test_clusters_by_id_after_two_splits():
    run = scripted({1: EVEN_ODD, 2: ODD_PART}, 8)
    run.rounds(1)
    assert clusters(run) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    run.rounds(1)
    assert clusters(run) == [[0, 2, 4, 6], [1, 5], [3, 7]]


def test_who_was_not_drawn_follows_its_last_update_and_who_never_was_the_larger_half():
    """Everybody moves along ±x all the time, even +, odd −, of eight clients half are drawn. From the round of the
    first split on, whoever has once been drawn is with its own kind.
    """
    always = {i: (2.0, 0.0) if i % 2 == 0 else (-2.0, 0.0) for i in range(8)}
    run = scripted(dict.fromkeys(range(1, 30), always), 8, participation=0.5, eps_1=5.0)
    drawn: set[int] = set()
    while len(run.loop.server.memory["children"]) == 1:
        now = run.rounds(1)
        drawn |= set(now)
    memory = run.loop.server.memory
    larger = max((0, 1), key=lambda kind: sum(c % 2 == kind for c in now))
    for client in range(8):
        open_client(run.loop, client)
        direction = memory[f"update{find_cluster(run.loop.engine.client, run.loop.server)}"]
        kind = client % 2 if client in drawn else larger
        assert direction[0] > 0 if kind == 0 else direction[0] < 0


def test_an_update_of_zero_attracts_nobody():
    """Its cosine counts as 0: more than the −1 of the other half, less than a 1."""
    client = SimpleNamespace(memory={"cluster": torch.tensor(0), "update": torch.tensor([1.0, 0.0])})
    for other, cluster in ((-1.0, 1), (1.0, 2)):
        updates = {"update1": torch.zeros(2), "update2": torch.tensor([other, 0.0])}
        server = SimpleNamespace(memory={"children": torch.tensor([1, 0, 0]), **updates})
        assert find_cluster(client, server) == cluster


def test_single_and_complete_linkage_differ_where_they_should():
    """A chain at 0°, 30°, 70°, 115°: gaps 30, 40, 45. Single linkage cuts the widest gap; complete linkage joins 0–30
    and 70–115 (45 < 70), so it cuts in the middle.
    """
    angles = torch.deg2rad(torch.tensor([0.0, 30.0, 70.0, 115.0], dtype=torch.float64))
    cosines = torch.cos(angles[:, None] - angles[None])
    assert cut(cosines, "single", 1.0) == [[0, 1, 2], [3]]
    assert cut(cosines, "complete", 1.0) == [[0, 1], [2, 3]]


def test_ties_still_make_two_halves():
    assert [len(half) for half in cut(torch.eye(5, dtype=torch.float64), "single", 1.0)] == [4, 1]


def test_only_models_travel():
    run = scripted({1: OPPOSED}, 4)
    run.rounds(1)
    assert (run.loop.history.up_bytes, run.loop.history.down_bytes) == (4 * 8, 4 * 8)


@pytest.mark.parametrize(("key", "value"), [("eps_1", -1), ("start_round", -1), ("max_cross_similarity", 2)])
def test_bad_settings_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"{key}: {value} is not allowed"):
        CFL(**{key: value})
    with pytest.raises(ConfigError, match=r"linkage: 'average' is not allowed; use single or complete"):
        CFL(linkage="average")
