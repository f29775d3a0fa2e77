"""Compiling the net with `torch.compile` (`loop.compile`)."""

from __future__ import annotations

import torch
from torch import nn
from torch.compiler import list_backends

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.training_run import ensure_started

KEY = "loop.compile"
GRAPHS = ("reduce-overhead", "max-autotune")
NO_GRAPHS = "max-autotune-no-cudagraphs"


def compile_net(client: ClientModule, backend: str, mode: str = "default") -> None:
    """Compile the net of a live model in place: neither its class nor the names of its parameters change.

    A training step is tried out, so that a missing compiler is reported before the first round. It leaves no trace
    except the compiled code, which training uses.

    Args:
        client: whose net is compiled.
        backend: a backend of `torch.compile`, such as inductor.
        mode: a mode of inductor, such as reduce-overhead, which replays a step as one CUDA graph.
    """
    net = getattr(client.task, "net", None)
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{KEY}: {type(client.task).__name__} has no net to compile; use null")
    if backend not in list_backends(exclude_tags=()):
        raise ConfigError(f"{KEY}: {backend!r} is not allowed; use {', '.join(list_backends())} or null")
    if mode in GRAPHS and not client.vector.is_cuda:
        raise ConfigError(f"{KEY}_mode: {mode} uses CUDA graphs and needs a GPU; use default or {NO_GRAPHS}")
    before = client.vector.clone()
    samples = torch.arange(min(client.local.batch_size, len(client.data.samples.y)))
    try:
        net.compile(backend=backend, **({} if mode == "default" else {"mode": mode}))
        with client.fork_rng():
            client.start_training()
            ensure_started(client.task)
            client.backpropagate(client.data.batch(samples, before.device))
    except Exception as error:
        raise ConfigError(
            f"{KEY}: {backend} does not work here: {_reason(error)}; use another backend, or null"
        ) from error
    client.start.restore()
    client.vector.copy_(before)
    client.grad.zero_()


def _reason(error: Exception) -> str:
    """The line with the cause: torch puts one before it that only names the backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[1] if len(lines) > 1 and lines[0].endswith("raised:") else lines[0]
