"""A compiled net computes the same."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric
from torch._dynamo import register_backend

from pfl_lightning.algorithms import FedAvg, FedOBP, FedPer
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.compiled import compile_net
from tests.helpers.outcome import assert_close, outcome
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import PlainNet, ToyNet, toy_loop


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    torch.compiler.reset()


def one_rank() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


SETTINGS = {"rounds": 2, "participation": 0.6, "eval_every": 2, "batch_size": 16}


@pytest.mark.parametrize("net", [PlainNet, ToyNet])
def test_compiling_changes_nothing(net):
    """With BatchNorm, whose statistics the trial step must not leave changed; ToyNet's dropout draws other numbers
    in compiled code, so it is off.
    """
    loops = []
    for backend in (None, "aot_eager"):
        loop = toy_loop(one_rank(), FedAvg(), net=net, compile=backend, **SETTINGS)
        for module in loop.engine.client.task.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        loop.fit()
        loops.append(loop)
    plain, compiled = loops
    assert compiled.engine.client.task.net._compiled_call_impl is not None
    assert compiled.server.layout == plain.server.layout
    torch.testing.assert_close(compiled.server.vector, plain.server.vector, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("algorithm", [FedPer(), FedOBP(quantile=0.8, score="fisher")], ids=lambda a: type(a).__name__)
def test_scores_and_several_clients_per_step_work_with_it(algorithm):
    """Per-sample gradients and clients that train together give the same beside a compiled net."""
    both = outcome(1, algorithm, compile="aot_eager", clients_per_step=2, **SETTINGS)
    assert_close(both, outcome(1, algorithm, **SETTINGS))


def test_an_unknown_backend_is_refused():
    with pytest.raises(ConfigError, match=r"loop.compile: 'gcc' is not allowed; use .*inductor.* or null"):
        toy_loop(one_rank(), FedAvg(), compile="gcc")


def test_a_backend_that_does_not_work_is_refused_in_one_line():
    def broken(graph, inputs):
        raise OSError("no compiler\nin sight")

    register_backend(broken, name="broken")
    with pytest.raises(ConfigError) as error:
        toy_loop(one_rank(), FedAvg(), compile="broken")
    assert str(error.value).startswith("loop.compile: broken does not work here: ")
    assert "no compiler" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_task_without_a_net_is_refused():
    client = ScalarClients(FedAvg(), [1.0], [2], steps=1).loop.engine.client
    with pytest.raises(ConfigError, match=r"loop.compile: Quadratic has no net to compile; use null"):
        compile_net(client, "inductor")


def test_a_mode_reaches_the_backend_and_changes_nothing(monkeypatch):
    """On a CPU no graph is replayed, so any mode must give the numbers of the default one. aot_eager stands in for
    inductor, which needs a compiler.
    """
    seen, compile_ = [], torch.nn.Module.compile

    def compiled(net: torch.nn.Module, backend: str, mode: str | None = None) -> None:
        seen.append((backend, mode))
        compile_(net, backend="aot_eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    mode = "max-autotune-no-cudagraphs"
    loop = toy_loop(one_rank(), FedAvg(), net=PlainNet, compile="inductor", compile_mode=mode, **SETTINGS)
    loop.fit()
    plain = toy_loop(one_rank(), FedAvg(), net=PlainNet, **SETTINGS)
    plain.fit()
    assert seen == [("inductor", mode)]
    torch.testing.assert_close(loop.server.vector, plain.server.vector, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_are_refused_on_a_cpu(mode):
    with pytest.raises(ConfigError, match=f"loop.compile_mode: {mode} uses CUDA graphs and needs a GPU; use default"):
        toy_loop(one_rank(), FedAvg(), compile="inductor", compile_mode=mode)


def test_a_mode_without_inductor_is_refused():
    with pytest.raises(ConfigError, match="compile_mode: 'reduce-overhead' is not allowed; use default, or compile"):
        toy_loop(one_rank(), FedAvg(), compile="aot_eager", compile_mode="reduce-overhead")
