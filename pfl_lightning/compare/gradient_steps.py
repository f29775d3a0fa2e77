"""The gradient steps of a run, from the samples that its clients trained on."""

from __future__ import annotations

import math

import numpy as np

from pfl_lightning.compare.run_facts import RunFacts, Values

FOR_STEPS = ("samples", "visits")
"""Columns of clients.csv that the functions below read."""


def gradient_steps(facts: RunFacts, round_: int, batch_size: int) -> float:
    """Gradient steps of all clients until the end of a round. NaN where the run did not record its samples.

    clients.csv has the samples that each client trained on, every pass and every model counted. A pass over a client's
    data has a known number of batches, and a pass over a part of it counts in proportion. Where there is no such row,
    every batch counts as full.
    """
    passes = _passes(facts, round_)
    if passes is None or facts.train_sizes is None:
        return facts.total(round_, "samples") / batch_size
    return float((passes * batches_per_pass(facts.train_sizes, batch_size)).sum())


def passes_per_visit(facts: RunFacts, planned: int) -> float:
    """Passes over a client's data at a visit, on average. NaN where the run did not record them.

    Unlike gradient steps they do not depend on which clients were drawn.
    """
    passes = _passes(facts, facts.last_round)
    return math.nan if passes is None else float(passes.sum()) / visits(facts, planned)


def batches_per_pass(sizes: Values, batch_size: int) -> Values:
    """Batches in one pass over the data of each client. A last batch of one sample joins the one before."""
    joined = (sizes > batch_size) & ((sizes - 1) % batch_size == 0)
    return np.asarray(np.ceil(sizes / batch_size) - joined, dtype=np.float64)


def _passes(facts: RunFacts, round_: int) -> Values | None:
    """Passes of each client over its data until the end of a round."""
    samples, sizes = facts.clients.get("samples", {}).get(round_), facts.train_sizes
    if samples is None or sizes is None or len(samples) != len(sizes):
        return None
    passes: Values = np.nan_to_num(samples) / np.maximum(sizes, 1)
    return passes


def visits(facts: RunFacts, planned: int) -> float:
    """Visits of all clients, as recorded at the last evaluation after the last round, else as planned."""
    counts = facts.clients.get("visits", {}).get(facts.last_round)
    total = math.nan if counts is None else float(np.nansum(counts))
    return float(planned) if math.isnan(total) else total
