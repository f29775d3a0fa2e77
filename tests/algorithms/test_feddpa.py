"""FedDPA against numbers worked by hand: the mask, the two phases and their pulls, clipping and noise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedDPA, Local
from pfl_lightning.algorithms.feddpa import clipped, draw
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.points import opened, point_loop
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop
from tests.helpers.visits import open_client

CONTRACT = [FedDPA(clip=True, noise=0.1, bn_buffers="local")]
LIKE_FEDAVG = [FedDPA(threshold=1.0, lam_personal=0.0, lam_shared=0.0)]


def test_mask_by_hand():
    """F = (0.1, 0.3, 0.6, 1.1) → (0, 0.2, 0.5, 1): above 0.4 are the last two; of the quantile 0.4 (the second
    smallest) also two, of 0 all but the smallest. A constant tensor is shared.
    """
    run = ScalarClients(FedDPA(), targets=[[0.0] * 4], sizes=[1], steps=1)
    score = torch.tensor([0.1, 0.3, 0.6, 1.1])
    assert run.loop.algorithm.select(score, run.loop.engine.client).tolist() == [False, False, True, True]
    assert FedDPA(selection="quantile").select(score, run.loop.engine.client).tolist() == [False, False, True, True]
    assert (
        FedDPA(selection="quantile", threshold=0.0).select(score, run.loop.engine.client).tolist()
        == [False] + [True] * 3
    )
    assert run.loop.algorithm.select(torch.full((4,), 0.7), run.loop.engine.client).tolist() == [False] * 4


def test_scores_are_scaled_in_each_tensor():
    """Head weight (0.1, 0.3, 0.6, 1.1), bias (10, 20), body 5: each tensor has a largest entry of its own, though over
    the whole model only the bias would be large. The body has one entry, which is neither large nor small.
    """
    loop = point_loop(FedDPA(), [[([1.0, 2.0], 0)]])
    layout = loop.engine.client.layout
    score = torch.full((layout.num_parameters,), 5.0)
    views = layout.views(score)
    views["net.head.weight"].copy_(torch.tensor([[0.1, 0.3], [0.6, 1.1]]))
    views["net.head.bias"].copy_(torch.tensor([10.0, 20.0]))
    mask = layout.views(loop.algorithm.select(score, loop.engine.client))
    assert mask["net.head.weight"].tolist() == [[False, False], [True, True]]
    assert mask["net.head.bias"].tolist() == [False, True]
    assert mask["net.body.weight"].tolist() == [False]


def test_clipping_by_hand():
    assert clipped(torch.tensor([3.0, 4.0]), 0.5).tolist() == pytest.approx([0.3, 0.4])
    assert clipped(torch.tensor([0.3, 0.0]), 0.5).tolist() == pytest.approx([0.3, 0.0])


def test_the_mask_is_made_of_the_fisher_information_of_ones_own_model():
    """f = ½‖x − a‖², so F_k = (x_k − a_k)². a = (4, 1), from 0 one step of lr 0.1 to (0.4, 0.1), pulls off.

    F = (3.6², 0.9²) → (1, 0): x_1 is personal. The other client has a = (0, 0), so w = (0.2, 0.05) and the merged model
    is (0.4, 0.05).
    """
    run = ScalarClients(FedDPA(lam_personal=0, lam_shared=0), targets=[[4.0, 1.0], [0.0, 0.0]], sizes=[1, 1], steps=1)
    run.rounds(1)
    client = opened(run.loop, 0)
    assert client.mask.tolist() == [True, False]
    assert client.vector.tolist() == pytest.approx([0.4, 0.05])


@pytest.mark.parametrize("fisher", ["sample", "batch"])
def test_the_score_that_is_asked_for_makes_the_mask(fisher):
    """On the toy data the two scores make different masks."""
    algorithm = FedDPA(fisher=fisher, phases="one")
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm)
    client = open_client(loop, 3)
    algorithm.download(client, loop.server)
    algorithm.fit(client, loop.server)
    made = client.mask[: client.layout.num_parameters].clone()
    masks = {"sample": algorithm.select(scores.fisher(client), client)}
    masks["batch"] = algorithm.select(scores.fisher_batch(client), client)
    assert torch.equal(made, masks[fisher])
    assert not torch.equal(masks["sample"], masks["batch"])


def test_the_phases_by_hand():
    """w = (0, 0), own = (1, 0), a = (3, 4), lr 0.1, λ_personal = 0.2, λ_shared = 0.4, C = 2; mask (1, 0), one tensor.

    Personal: gradient of x_1 is (1 − 3) + 0.1·1/‖(1, 0)‖ = −1.9, so x = (1.19, 0).
    Shared: ‖x − w‖ = 1.19 < 2, so the pull is outwards: gradient of x_2 is (0 − 4) − 0.2·0/1.19 = −4, x = (1.19, 0.4).
    Second steps. Personal again from (1, 0) → (1.19, 0) → gradient (1.19 − 3) + 0.1 = −1.71 → 1.361.
    Shared: 0 → 0.4, norm √(1.361² + 0.16) = 1.418567, gradient −3.6 − 0.2·0.4/1.418567 = −3.656395 → 0.765640.
    """
    algorithm = FedDPA(lam_personal=0.2, lam_shared=0.4, clip_norm=2.0)
    run = ScalarClients(algorithm, targets=[[3.0, 4.0]], sizes=[1], steps=2)
    open_client(run.loop, 0)
    client = run.loop.engine.client
    client.vector.copy_(torch.tensor([1.0, 0.0]))
    client.mask.copy_(torch.tensor([True, False]))
    algorithm.fit(client, run.loop.server)
    assert client.vector.tolist() == pytest.approx([1.361, 0.765640], abs=1e-5)


def test_one_phase_is_plain_training_of_everything():
    """As the FedOBP paper's comparison trains: two clients at 4 and −2, two steps of 0.1, no pull, all entries."""
    algorithm = FedDPA(phases="one", threshold=-1.0, lam_personal=9.0, lam_shared=9.0)
    run = ScalarClients(algorithm, targets=[4, -2], sizes=[1, 1], steps=2)
    run.rounds(1)
    assert run.client_values() == pytest.approx([0.19 * 4, 0.19 * -2], abs=1e-6)
    run.rounds(1)
    assert run.client_values() == pytest.approx([(1 - 0.81**2) * 4, (1 - 0.81**2) * -2], abs=1e-6)


def test_beyond_the_length_the_pull_is_inwards():
    """Nothing personal, one step from (3, 0) with a = (3, 0), w = 0, C = 2: gradient 0 + 0.2·1 → 2.98."""
    algorithm = FedDPA(lam_shared=0.4, clip_norm=2.0)
    run = ScalarClients(algorithm, targets=[[3.0, 0.0]], sizes=[1], steps=1)
    open_client(run.loop, 0)
    run.loop.engine.client.vector.copy_(torch.tensor([3.0, 0.0]))
    algorithm.fit(run.loop.engine.client, run.loop.server)
    assert run.loop.engine.client.vector.tolist() == pytest.approx([2.98, 0.0])


def test_all_personal_is_local():
    runs = [
        ScalarClients(a, targets=[[4.0, 1.0], [-2.0, 3.0]], sizes=[1, 2], steps=2)
        for a in (FedDPA(threshold=-1.0, lam_personal=0, lam_shared=0), Local())
    ]
    for run in runs:
        run.rounds(3)
    for client in (0, 1):
        one, other = (opened(run.loop, client).vector.tolist() for run in runs)
        assert one == pytest.approx(other, abs=1e-6)


def test_everything_is_uploaded_and_a_true_zero_is_no_sign():
    """x_2 of client 0 is 0 after round 1: personal or not by its score, never by its value. w is the mean."""
    run = ScalarClients(FedDPA(lam_personal=0, lam_shared=0), targets=[[4.0, 0.0], [0.0, 2.0]], sizes=[1, 1], steps=1)
    run.rounds(1)
    assert run.loop.server.vector.tolist() == pytest.approx([0.2, 0.1])
    assert (run.loop.history.up_bytes, run.loop.history.down_bytes) == (16, 16)
    run.rounds(1)  # client 0: x_1 personal 0.4 → 0.76, x_2 0.1 → 0.09; client 1: x_1 0.2 → 0.18, x_2 0.2 → 0.38
    assert run.loop.server.vector.tolist() == pytest.approx([(0.76 + 0.18) / 2, (0.09 + 0.38) / 2])


def test_clipped_updates_reach_the_server():
    """θ − w = 0.1·(3, 4)·10 = (3, 4) with lr 1: clipped to (0.3, 0.4); the client's own model is not."""
    algorithm = FedDPA(clip=True, lam_shared=0, threshold=-1)
    run = ScalarClients(algorithm, targets=[[3.0, 4.0]], sizes=[1], steps=1, lr=1.0)
    run.rounds(1)
    assert run.loop.server.vector.tolist() == pytest.approx([0.3, 0.4])
    assert run.loop.store.get(0)["personal"].tolist() == pytest.approx([3, 4])


def test_the_update_that_is_clipped_counts_from_the_received_model():
    """The client's own model is (3, 4), w = (3, 0): the update (0, 4) is cut to (0, 0.5)."""
    run = ScalarClients(FedDPA(clip=True, threshold=-1), targets=[[3.0, 4.0]], sizes=[1], steps=1, lr=1.0)
    run.rounds(1)
    run.loop.server.vector.copy_(torch.tensor([3.0, 0.0]))
    run.rounds(1)
    assert run.loop.server.vector.tolist() == pytest.approx([3.0, 0.5])


def test_the_lengths_of_all_tensors_are_added():
    """Two tensors of length 1.5 are beyond C = 2 together, so both are pulled inwards."""
    spans = [SimpleNamespace(start=0, stop=1), SimpleNamespace(start=1, stop=2)]
    layout = SimpleNamespace(parameter_spans=spans)
    client = SimpleNamespace(theta=torch.tensor([1.5, -1.5]), grad=torch.zeros(2), layout=layout)
    draw(client, torch.zeros(2), 0.4, 2.0)
    assert client.grad.tolist() == pytest.approx([0.2, -0.2])


def test_noise_has_its_size_and_differs_by_client_and_round():
    """σ = 2, C = 0.5, nine clients: deviation 2·0.5/√9 = 1/3 per entry at each client, 1/9 in the mean of nine."""
    algorithm = FedDPA(clip=True, noise=2.0, lam_shared=0, lam_personal=0)
    run = ScalarClients(algorithm, targets=[[0.0] * 4000] * 9, sizes=[1] * 9, steps=1)
    run.rounds(1)
    assert float(run.loop.server.vector.std()) == pytest.approx(1 / 9, rel=0.05)
    first = run.loop.server.vector.clone()
    run.rounds(1)
    assert not torch.equal(run.loop.server.vector, first)


def test_noise_is_never_drawn_twice():
    """The same model at two clients and in two rounds: four uploads, all different."""
    run = ScalarClients(FedDPA(clip=True, noise=1.0), targets=[[0.0] * 3] * 2, sizes=[1, 1], steps=1)
    uploads = set()
    for client in (0, 1):
        for round_ in (1, 2):
            module = open_client(run.loop, client)
            module.round = round_
            uploads.add(tuple(run.loop.algorithm.upload(module, run.loop.server).values["vector"].tolist()))
    assert len(uploads) == 4


def test_training_is_in_training_mode():
    """The scores are made in evaluation mode; BatchNorm's statistics must move in the training that follows."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedDPA())
    loop.round()
    client = opened(loop, 3)
    before = client.vector[client.layout.num_parameters :].clone()
    loop.algorithm.fit(client, loop.server)
    assert not torch.equal(client.vector[client.layout.num_parameters :], before)


def test_the_quantile_keeps_its_share_of_each_tensor():
    """0.4 of the quantile leaves n − 1 − ⌊0.4 (n − 1)⌋ of n entries, unless scores are equal (dead ReLUs: zero)."""
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedDPA(fisher="batch", selection="quantile"))
    loop.round()
    mask = opened(loop, 3).mask
    for span in loop.engine.client.layout.parameter_spans:
        n = span.stop - span.start
        assert 0 < int(mask[span.start : span.stop].sum()) <= n - 1 - int(0.4 * (n - 1))
    assert not mask[loop.engine.client.layout.num_parameters :].any()


def test_a_client_never_drawn_has_the_global_model():
    run = ScalarClients(FedDPA(), targets=[4, -2], sizes=[1, 1], steps=2, participation=0.5)
    (drawn,) = run.rounds(1)
    assert run.client_values()[1 - drawn] == run.server_value != 0


def test_bad_settings_are_refused():
    for key, value in (("lam_personal", -1), ("lam_shared", -1), ("noise", -1), ("clip_norm", 0)):
        with pytest.raises(ConfigError, match=rf"{key}: {value} is not allowed"):
            FedDPA(**{key: value})
    with pytest.raises(ConfigError, match=r"noise: 1.0 is not allowed; use 0, or clip: true with it"):
        FedDPA(noise=1.0)
    with pytest.raises(ConfigError, match=r"threshold: -0.1 is not allowed; use a number from 0 to 1"):
        FedDPA(selection="quantile", threshold=-0.1)
    with pytest.raises(ConfigError, match=r"selection: 'best' is not allowed; use threshold or quantile"):
        FedDPA(selection="best")
    with pytest.raises(ConfigError, match=r"fisher: 'client' is not allowed; use sample or batch"):
        FedDPA(fisher="client")


def test_the_pull_is_away_from_the_received_model_and_a_score_at_the_threshold_is_shared():
    """θ = (1, 0, 0), w = (1, 2, 0): θ − w = (0, −2, 0), so 0.4/2 · |‖θ − w‖| has the gradient (0, −0.2, 0)."""
    run = ScalarClients(FedDPA(threshold=0.5), targets=[[0.0, 0.0, 0.0]], sizes=[1], steps=1)
    open_client(run.loop, 0)
    client = run.loop.engine.client
    client.vector.copy_(torch.tensor([1.0, 0.0, 0.0]))
    client.grad.zero_()
    draw(client, torch.tensor([1.0, 2.0, 0.0]), 0.4)
    assert client.grad.tolist() == pytest.approx([0.0, -0.2, 0.0])
    assert run.loop.algorithm.select(torch.tensor([0.0, 0.5, 1.0]), client).tolist() == [False, False, True]
