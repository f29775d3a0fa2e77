"""From 100 to 100 000 clients, ten of them in a round: seconds per round, memory and set-up.

Every size is measured in a process of its own, all of them in turns. Clients share one pool of images, so that the data
takes the same memory everywhere. The method keeps a whole model of each visited client; `store.memory` holds a few.

A million clients alone, with few samples each, and evaluations of a thousand of them and of all:

    python tools/bench/federation_size.py --one 1000000 --samples 6 2 --evaluate 1000 1000000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from federation import RandomImages, make_loop
from measure import Part, Spread, draw_lines, take_turns

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.engine.cohort import draw_evaluated
from pfl_lightning.foundation.process_memory import peak_memory
from pfl_lightning.nets import CNN
from pfl_lightning.store import StoreConfig

SIZES = (100, 1_000, 10_000, 100_000)
COHORT, TRAIN, TEST, POOL = 10, 60, 20, 4_000
MEMORY = "50MB"


def measure(
    clients: int, rounds: int, train: int = TRAIN, test: int = TEST, evaluate: Sequence[int] = ()
) -> dict[str, Any]:
    """In this process: set up a federation and run some rounds, of which the first is not counted.

    Then evaluate so many of the clients.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        data = RandomImages((1, 28, 28), [train] * clients, test, POOL)
        data.setup(0)
        store = StoreConfig(MEMORY, Path(folder))
        loop = make_loop(data, CNN, FedOBP(), store=store, participation=COHORT / clients, local_epochs=2)
        ready = time.perf_counter() - begin
        seconds = [float(loop.round().scalars["seconds"]) for _ in range(1 + rounds)][1:]
        answer = {"setup": ready, "round": Spread.of(seconds).median, "memory": peak_memory()}
        for number in evaluate:
            begin = time.perf_counter()
            loop.evaluated = draw_evaluated(0, clients, number)
            loop.evaluate()
            answer[f"evaluation of {number}"] = time.perf_counter() - begin
        return answer | {"disk": loop.store.tiers.on_disk, "visited": len(loop.store.states)}


def elsewhere(clients: int, rounds: int) -> dict[str, Any]:
    """The same in a process of its own, which has no memory of other sizes."""
    words = [sys.executable, __file__, "--one", str(clients), "--rounds", str(rounds)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--one", type=int, help="measure this number of clients here and print JSON")
    more.add_argument("--rounds", type=int)
    more.add_argument("--samples", type=int, nargs=2, default=[TRAIN, TEST], help="of a client with --one: train, test")
    more.add_argument("--evaluate", type=int, nargs="*", default=[], help="with --one: evaluate so many clients")
    part = Part("federation_size", "Ten of so many clients in a round", more=more)
    options = part.options()
    turns, rounds = (1, 3) if options.quick else (3, 12)
    if options.one:
        print(json.dumps(measure(options.one, options.rounds or rounds, *options.samples, options.evaluate)))
        return
    things = {str(n): lambda n=n: elsewhere(n, options.rounds or rounds) for n in SIZES}
    found = take_turns(things, options.turns or turns, warm_up=0)
    base, shown = found[str(SIZES[0])], {}
    for key in ("round", "memory", "setup"):
        shown[key] = [Spread.of([answer[key] for answer in found[str(n)]]) for n in SIZES]
    for place, n in enumerate(SIZES):
        over = {
            k: Spread.of([a[k] / b[k] for a, b in zip(found[str(n)], base, strict=True)]) for k in ("round", "memory")
        }
        part.rows.append(
            {
                "clients": f"{n:,}",
                "seconds a round": shown["round"][place].text(3),
                "over 100 clients": over["round"].text(),
                "peak memory, MiB": f"{shown['memory'][place].median / 2**20:,.0f}",
                "memory over 100 clients": over["memory"].text(),
                "goal": "0.90 to 1.10",
                "set-up, s": shown["setup"][place].text(3),
                "states on disk, MiB": f"{found[str(n)][0]['disk'] / 2**20:,.0f}",
                "clients visited": found[str(n)][0]["visited"],
            }
        )
    mib = [Spread(*(value / 2**20 for value in spread)) for spread in shown["memory"]]
    panels = {"seconds a round": shown["round"], "peak memory, MiB": mib, "set-up, seconds": shown["setup"]}
    part.figures[part.name] = draw_lines(part.about, "clients", {name: (SIZES, panels[name]) for name in panels})
    part.finish()


if __name__ == "__main__":
    main()
