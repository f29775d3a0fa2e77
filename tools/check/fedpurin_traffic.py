"""FedPURIN's traffic over a long run, in plain torch: why Table 3 falls after β.

python tools/check/fedpurin_traffic.py [--rounds 200] [--beta 100] [--cutoff 1e-10] [--half] [--alpha 0.1]
    [--out rounds.csv]

All 20 clients are trained at once by batched products, so 200 rounds take less than a minute. The net is a small MLP
with BatchNorm on images of 14x14. Rates, momentum, batches per round, τ, β and the number of rounds are the paper's.
`--half` rounds the gradients to 16 bits before scoring, as the authors' code does. Nothing of the method is shared with
`pfl_lightning`; the data and the partition come from there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy

from pfl_lightning.data import ClientDirichlet, Fashion10k

CLIENTS, IMAGES, BATCH, EPOCHS, LR, MOMENTUM, TAU, WIDTH = 20, 250, 50, 5, 0.1, 0.9, 0.5, 64
SHARED = ("w1", "w2", "w3", "b3")
"""What clients exchange. BatchNorm's weights (g1, a1, g2, a2) stay with a client."""
Models = dict[str, Tensor]
"""Parameters of all clients, each [clients, ...]."""


class Traffic(NamedTuple):
    """Means over the clients of a round; traffic as a share of the dense model."""

    round: int
    loss: float
    up: float
    down: float
    silent: int
    """Clients that send less than a tenth of what τ allows."""
    edge: float
    """The score that an entry of w1 needs to be critical, median over the clients. It is not sent below the cutoff."""
    lowest_edge: float
    """The same, of the client for which it is lowest."""


def images(alpha: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training images [clients, images, 196] in [0, 1] and their labels."""
    data = Fashion10k(num_clients=CLIENTS, partition=ClientDirichlet(alpha=alpha, train_size=IMAGES, test_size=20))
    data.setup(seed)
    rows = torch.stack([data.train_indices(client) for client in range(CLIENTS)])
    pixels = avg_pool2d(data.samples.x[..., 0].float() / 255, 2)
    return pixels.flatten(1)[rows], data.samples.y[rows]


def initial(seed: int) -> Models:
    """The same random model for every client."""
    torch.manual_seed(seed)
    one = {"w1": torch.randn(196, WIDTH) / 14, "w2": torch.randn(WIDTH, WIDTH) / 8, "w3": torch.randn(WIDTH, 10) / 8}
    one |= {"b3": torch.zeros(10)}
    one |= {f"{kind}{n}": torch.full((WIDTH,), float(kind == "g")) for n in (1, 2) for kind in "ga"}
    return {name: value.expand(CLIENTS, *value.shape).clone() for name, value in one.items()}


def losses(m: Models, x: Tensor, y: Tensor) -> Tensor:
    """Mean loss of each client on its batch. # [clients]"""
    for n in (1, 2):
        x = x @ m[f"w{n}"]
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = (x * m[f"g{n}"][:, None] + m[f"a{n}"][:, None]).relu()
    logits = x @ m["w3"] + m["b3"][:, None]
    return cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


def train(m: Models, x: Tensor, y: Tensor) -> tuple[Models, Models, float]:
    """Local training of all clients. Returns the models, the gradients of the last batch and the last epoch's loss."""
    speed = {name: torch.zeros_like(value) for name, value in m.items()}
    total, grads = 0.0, m
    for epoch in range(EPOCHS):
        order = torch.stack([torch.randperm(IMAGES) for _ in range(CLIENTS)])
        for at in order.split(BATCH, dim=1):
            leaves = {name: value.detach().requires_grad_() for name, value in m.items()}
            picked = at[..., None].expand(-1, -1, x.shape[-1])
            loss = losses(leaves, x.gather(1, picked), y.gather(1, at))
            grads = dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))
            speed = {name: MOMENTUM * speed[name] + grads[name] for name in m}
            m = {name: (leaves[name] - LR * speed[name]).detach() for name in m}
            total += float(loss.mean().detach()) * BATCH / IMAGES * (epoch == EPOCHS - 1)
    return m, grads, total


def critical(theta: Tensor, grad: Tensor, cutoff: float) -> Tensor:
    """The top τ of one tensor by |g·θ|, at least `cutoff`. # bool [clients, n]"""
    score = (theta * grad).abs().flatten(1)
    best = score.topk(int(TAU * score.shape[1]), dim=1)
    chosen = torch.zeros_like(score, dtype=torch.bool).scatter(1, best.indices, True)
    return chosen & (score >= cutoff)


def edge(theta: Tensor, grad: Tensor) -> Tensor:
    """The lowest score among the top τ of one tensor. # [clients]"""
    score = (theta * grad).abs().flatten(1)
    return score.topk(int(TAU * score.shape[1]), dim=1).values[:, -1]


def groups(mask: Tensor, round_: int, beta: int) -> Tensor:
    """Who is averaged with whom, the client itself included. # bool [clients, clients]"""
    itself = torch.eye(CLIENTS, dtype=torch.bool)
    if round_ > beta:
        return itself
    m = mask.double()
    different = m.sum(1)[:, None] + m.sum(1)[None] - 2 * m @ m.T
    overlap = 1 - different / (2 * m.sum(1, keepdim=True).clamp(min=1))
    others = overlap[~itself]
    threshold = others.mean() + round_ / beta * (others.max() - others.mean())
    return (overlap >= threshold - 1e-12) | itself


def flat(m: Models) -> Tensor:
    """The parameters that are exchanged. # [clients, P]"""
    return torch.cat([m[name].flatten(1) for name in SHARED], dim=1)


def numbers(count: Tensor, places: int | Tensor) -> Tensor:
    """Size of a sparse vector in numbers of 4 bytes: values and a bit, or an index, for each place."""
    return count + torch.minimum(count, torch.as_tensor(places) / 32)


def run(rounds: int, beta: int, cutoff: float, half: bool, alpha: float, seed: int) -> list[Traffic]:
    """The traffic of each round."""
    x, y = images(alpha, seed)
    m, rows = initial(seed), []
    size = flat(m).shape[1]
    down = torch.full((CLIENTS,), float(size))
    for round_ in range(1, rounds + 1):
        m, grads, loss = train(m, x, y)
        if half:
            grads = {name: grad.half().float() for name, grad in grads.items()}
        mask = torch.cat([critical(m[name], grads[name], cutoff) for name in SHARED], dim=1)
        sparse = flat(m) * mask
        up = numbers(mask.sum(1), size)
        shares = float(up.mean() / size), float(down.mean() / size)
        edges = edge(m["w1"], grads["w1"])
        silent = int((up < 0.1 * TAU * size).sum())
        rows.append(Traffic(round_, loss, *shares, silent, float(edges.median()), float(edges.min())))
        member = groups(mask, round_, beta).float()
        common = sparse.mean(0)
        start = torch.where(mask, member @ sparse / member.sum(1, keepdim=True), common)
        pieces = start.split([m[name][0].numel() for name in SHARED], dim=1)
        m |= {name: piece.view_as(m[name]) for name, piece in zip(SHARED, pieces, strict=True)}
        outside = size - mask.sum(1)
        down = torch.minimum(outside, numbers(((common != 0) & ~mask).sum(1), outside))
        down = down + mask.sum(1) * (member.sum(1) > 1)
    return rows


def main() -> None:
    """Write the rounds as CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--beta", type=int, default=100)
    parser.add_argument("--cutoff", type=float, default=1e-10)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="-")
    args = parser.parse_args()
    rows = run(args.rounds, args.beta, args.cutoff, args.half, args.alpha, args.seed)
    with sys.stdout if args.out == "-" else open(args.out, "w") as file:
        writer = csv.writer(file)
        writer.writerow(Traffic._fields)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
