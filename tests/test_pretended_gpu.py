"""Every method on a pretended GPU: no devices are mixed, the bits are those of the CPU, and waits are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import APFL, FedAvg, FedOBP, Floco, FlocoPlus, LGFedAvg
from pfl_lightning.engine import sequential
from pfl_lightning.model import masks
from tests.algorithms.test_contract import ALGORITHMS
from tests.helpers.pretended_gpu import DEVICE, PretendedGpu
from tests.helpers.toy import PlainNet, fingerprint, toy_loop

METHODS = list({type(algorithm).__name__: algorithm for algorithm in reversed(ALGORITHMS)}.values())
WAITS_PER_VISIT = {
    "APFL": 3, "FedAvg": 2, "FedProx": 2, "LGFedAvg": 2, "Ditto": 3, "FedBN": 3, "FedPer": 3, "FedRep": 3,
    "Learn2pFed": 3, "Local": 3, "PFedMe": 3, "PFedSD": 3, "CFL": 4, "FedBABU": 4, "FedDWA": 4, "LpProj": 4, "FLUTE": 5,
    "FedOBP": 5, "FedALA": 6, "Floco": 6, "KNNPer": 6, "FedDPA": 7, "FedPAC": 7, "PFedSOP": 7, "FlocoPlus": 8,
    "AdaptiveQuantile": 11, "SoftMerge": 11, "PFedFDA": 8, "FedCAC": 11, "FedSelect": 13, "FedPURIN": 14,
    "FedAvgFT": 2, "FedProxFT": 2,
}  # fmt: skip
"""The most waits of the host at one visit of a client that was trained before, in the second round."""
FIRST_VISIT = {"Learn2pFed": 9, "FedSelect": 22, "FedBN": 5}
"""The most waits at a first visit, where they are more."""
LATER = [(LGFedAvg(warmup_rounds=1), 4), (Floco(endpoints=3, tau=2), 7), (FlocoPlus(endpoints=2, tau=2), 9)]
"""Methods that wait more often once they do more: here in the second round."""


@pytest.fixture
def waits(monkeypatch) -> Iterator[list[int]]:
    """The number of waits at each visit."""
    visit, found = sequential.visit, []

    def counted(*args: Any) -> Any:
        gpu = PretendedGpu.active
        before = sum(gpu.waits.values()) if gpu else 0
        result = visit(*args)
        if gpu:
            found.append(sum(gpu.waits.values()) - before)
        return result

    monkeypatch.setattr(sequential, "visit", counted)
    return found


def run(algorithm: Algorithm, epochs: int = 1) -> dict[str, Any]:
    """Two rounds of all three clients, and an evaluation."""
    fabric = Fabric(accelerator="cpu", devices=1)
    return toy_loop(fabric, algorithm, num_clients=3, rounds=2, eval_every=2, local_epochs=epochs).fit()


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda algorithm: type(algorithm).__name__)
def test_a_method_gives_the_bits_of_a_cpu_and_waits_no_more_for_more_steps(algorithm, waits):
    on_cpu = run(algorithm)
    with PretendedGpu():
        assert fingerprint(run(algorithm)) == fingerprint(on_cpu)
        run(algorithm, epochs=2)
    assert len(waits) == 12
    assert waits[3:6] == waits[9:12], "the host waits at a training step"
    name = type(algorithm).__name__
    assert max(waits[3:6]) == WAITS_PER_VISIT[name]
    assert name not in FIRST_VISIT or max(waits[:3]) == FIRST_VISIT[name]
    assert name in FIRST_VISIT or max(waits[:3]) <= WAITS_PER_VISIT[name]


@pytest.mark.parametrize(("algorithm", "most"), LATER, ids=lambda value: type(value).__name__)
def test_a_method_that_does_more_later_waits_more_often(algorithm, most, waits):
    with PretendedGpu():
        run(algorithm)
    assert max(waits[3:6]) == most


@pytest.mark.parametrize("algorithm", [FedAvg(), FedOBP(quantile=0.9), APFL()], ids=lambda a: type(a).__name__)
def test_clients_that_train_together_give_the_bits_of_a_cpu_and_wait_in_no_step(algorithm):
    """With a training of the whole group (FedAvg), with personal entries, and with single gradients (APFL)."""
    counts = []
    for epochs in (1, 2):
        settings = {"num_clients": 3, "rounds": 2, "eval_every": 2, "local_epochs": epochs, "clients_per_step": 3}
        on_cpu = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, net=PlainNet, **settings).fit()
        with PretendedGpu() as gpu:
            loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, net=PlainNet, **settings)
            gpu.waits.clear()
            assert fingerprint(loop.fit()) == fingerprint(on_cpu)
            counts.append(gpu.waits.total())
    assert counts[0] == counts[1], "the host waits at a training step"


def test_the_largest_are_those_of_a_cpu_and_nobody_waits_for_ties():
    scores = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 0.0])
    on_cpu = [masks.largest(scores, count) for count in range(9)]
    with PretendedGpu() as gpu:
        on_gpu = [masks.largest(scores.to(DEVICE), count) for count in range(9)]
        assert {kind for kind, _ in gpu.waits} == {"copy to the device"}
        assert [chosen.tolist() for chosen in on_gpu] == [chosen.tolist() for chosen in on_cpu]


def test_the_device_refuses_what_cuda_refuses():
    with PretendedGpu() as gpu:
        on_gpu, on_cpu = torch.ones(3).to(DEVICE), torch.ones(3)
        with pytest.raises(RuntimeError, match="same device"):
            on_gpu + on_cpu
        with pytest.raises(TypeError, match="numpy"):
            on_gpu.numpy()
        assert (on_gpu * torch.tensor(2.0)).sum().item() == 6, "a number may come from the CPU"
        assert torch.zeros_like(on_gpu, device="cpu").device.type == "cpu"
        assert on_gpu.new_tensor([1.0]).is_cuda
        assert on_cpu.to(on_gpu).is_cuda
        gpu.waits.clear()
        assert on_gpu.tolist() == [1, 1, 1]
        assert bool((on_gpu > 0).all())
        assert on_gpu[on_gpu > 0].is_cuda
        on_gpu[on_gpu > 0] = 2.0
        on_cpu.pin_memory().to(DEVICE, non_blocking=True)
        on_cpu.to(DEVICE, non_blocking=True)
        on_gpu.cpu()
    kinds = sorted(kind for (kind, _), count in gpu.waits.items() for _ in range(count))
    assert kinds == ["_local_scalar_dense", "copy to the device", "copy to the host", "index with a mask", "tolist"]
