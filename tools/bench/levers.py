"""What single changes gain: the same work in the usual way and in ours, in turns, with the same result.

The model is the CNN on 3x32x32 images (878 538 parameters); a batch has 32 samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import plain_nets
import torch
from bare_process import BareProcess
from federation import RandomImages, make_loop, work_of
from measure import Bar, Part, Spread, ratios, take_turns
from torch import Tensor, nn
from torch.optim import SGD

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from pfl_lightning.nets import CNN

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Not ours to set: the C library reads it before a process begins."""
Pair = tuple[Callable[[], object], Callable[[], object]]


def repeated(work: Callable[[], object], times: int) -> float:
    """Milliseconds for one."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return 1000 * (time.perf_counter() - begin) / times


def step(client: ClientModule) -> Pair:
    """On copies: the model would run away."""
    tensors = [nn.Parameter(p.detach().clone()) for p in client.task.parameters()]
    for tensor in tensors:
        tensor.grad = torch.full_like(tensor, 1e-6)
    client.grad.fill_(1e-6)
    return SGD(tensors, lr=0.01, momentum=0.7).step, client.fresh_optimizer().step


def freezing(theta: Tensor) -> Pair:
    free = torch.rand(len(theta), generator=torch.Generator().manual_seed(0)) < 0.5
    values, kept = theta.clone(), theta.clone()
    return partial(torch.where, free, values, kept, out=values), masks.restorer(theta.clone(), free)


def selection(scores: Tensor, quantile: float) -> Pair:
    count = masks.personal_count(len(scores), quantile)
    return (
        lambda: scores > torch.kthvalue(scores, len(scores) - count).values,
        lambda: masks.above_quantile(scores, quantile),
    )


def seeding(client: ClientModule) -> Pair:
    return lambda: torch.manual_seed(1), lambda: client.seed_rng(1)


def main() -> None:
    part = Part("levers", "Time in our way over the usual way", axis="ours / usual")
    options = part.options()
    turns = options.turns or (2 if options.quick else 15)
    loop = make_loop(RandomImages((3, 32, 32), [320], 32), CNN, FedAvg(), local_epochs=1)
    client = loop.engine.client
    client.load_state(0, 1, None, loop.server.initial)
    client.start_training()
    scores = torch.rand(len(client.theta), generator=torch.Generator().manual_seed(0)).square_()
    work = work_of(loop, plain_nets.cnn)
    bare = [BareProcess(work, "channels_last", reuse) for reuse in (False, True)]
    layouts = [BareProcess(work, layout, True) for layout in ("plain", "channels_last")]
    pages = [BareProcess(work, "channels_last", True, variables=each) for each in ({}, HUGE_PAGES)]
    pairs: dict[str, tuple[Pair, int]] = {
        "order in memory, a batch of the bare loop: plain, channels_last": (_training(layouts), 0),
        "freed memory, a batch of the bare loop: given back, reused": (_training(bare), 0),
        "pages of memory, a batch of the bare loop: small, huge (*)": (_training(pages), 0),
        "a step of SGD: tensor by tensor, flat and fused": (step(client), 20),
        "half of the parameters set back after a step: `torch.where`, bits": (freezing(client.theta), 20),
        "the largest 0.01 % of the scores: `kthvalue`, ours": (selection(scores, 0.9999), 10),
        "the largest half of the scores: `kthvalue`, ours": (selection(scores, 0.5), 10),
        "a seed for a client: `torch.manual_seed`, ours": (seeding(client), 20),
    }
    for name, (pair, times) in pairs.items():
        ways = dict(zip(("usual", "ours"), pair, strict=True))
        things = {way: partial(repeated, work, times) if times else work for way, work in ways.items()}
        found = take_turns(things, turns)
        ratio = ratios(found["ours"], found["usual"])
        part.rows.append(
            {
                "what: the usual way, ours": name,
                "ours / usual": ratio.text(),
                "usual, ms": f"{Spread.of(found['usual']).median:.2f}",
                "ours, ms": f"{Spread.of(found['ours']).median:.2f}",
            }
        )
        part.bars.append(Bar(name.partition(":")[0], ratio))
    for process in (*bare, *layouts, *pages):
        process.end()
    part.finish()


def _training(processes: list[BareProcess]) -> Pair:
    """Milliseconds a batch; the processes say themselves how long they took."""
    usual, ours = (lambda process=process: 100 * process.do("training") for process in processes)
    return usual, ours


if __name__ == "__main__":
    main()
