"""A tree of clusters that only ever splits: its leaves have models, its inner nodes remember who went where (CFL)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.parts.pairwise import dot
from pfl_lightning.model.client import ClientModule

TINY = 1e-150
"""Keeps the cosine with an update of zero at zero."""


def cut(cosines: Tensor, method: str, limit: float) -> list[list[int]]:
    """Two lists of rows, the larger (or else the one with row 0) first. One list of all if it must not be cut.

    Args:
        cosines: similarities, float64 [n, n].
        method: the linkage, single or complete.
        limit: rows of different halves must not be more similar than this.
    """
    distances = squareform((1 - cosines).clamp(min=0).fill_diagonal_(0).numpy(), checks=False)
    side = cut_tree(linkage(distances, method), n_clusters=2).ravel()
    halves = sorted((np.flatnonzero(side == s).tolist() for s in (0, 1)), key=lambda half: (-len(half), half))
    if float(cosines[halves[0]][:, halves[1]].max()) > limit:
        return [list(range(len(cosines)))]
    return halves


def find_cluster(client: ClientModule, server: Server) -> int:
    """The client's cluster now: from the one it was last in down to a leaf, by its last update."""
    node = int(client.memory.get("cluster", torch.zeros(())))
    while first := int(server.memory["children"][node]):
        node = first  # the larger half
        if "update" in client.memory:
            directions = [server.memory[f"update{child}"] for child in (first, first + 1)]
            near, far = (dot(client.memory["update"], d) / length(d).clamp(min=TINY) for d in directions)
            node = first if near >= far else first + 1
    return node


def grow_tree(node: int, server: Server) -> int:
    """Make a leaf of the tree an inner node. Returns its first child, the second comes next."""
    children = server.memory["children"]
    first = len(children)
    server.memory["children"] = torch.cat([children, torch.zeros_like(children[:1]).repeat(2)])
    server.memory["children"][node] = first
    del server.memory[f"model{node}"]
    return first


def length(vector: Tensor) -> Tensor:
    """The Euclidean norm, in float64."""
    return dot(vector, vector).sqrt()
