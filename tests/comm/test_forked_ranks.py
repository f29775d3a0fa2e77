"""Forked ranks find each other whatever other programs do."""

from __future__ import annotations

import os
import socket

from lightning.fabric import Fabric

from tests.helpers.ranks import run_on_ranks


def rank(fabric: Fabric) -> int:
    return fabric.global_rank


def test_ranks_start_although_another_program_has_taken_the_port_of_an_earlier_launch(monkeypatch):
    """Lightning keeps the port of the first launch in MASTER_PORT for all later ones."""
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert run_on_ranks(rank, 2) == [0, 1]
    port = int(os.environ.get("MASTER_PORT", "0"))
    with socket.create_server(("", port)) as other:
        monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
        assert run_on_ranks(rank, 2) == [0, 1]


def test_answers_may_be_long():
    """A pipe holds 64 KiB, and nobody reads it before the ranks have ended."""
    assert run_on_ranks(lambda fabric: "x" * 200_000, 2) == ["x" * 200_000] * 2
