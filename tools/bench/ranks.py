"""One rank against two: how much more a second core trains, on cohorts of unequal clients, and how long ranks wait."""

from __future__ import annotations

from functools import partial
from typing import Any

from federation import RandomImages, make_loop, unequal_sizes
from lightning.fabric import Fabric
from measure import Bar, Part, Spread, take_turns

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.cli.launch import FabricConfig, make_fabric
from pfl_lightning.nets import CNN

GOAL = 1.8
SHAPES = {"CNN 3x32x32": (3, 32, 32), "CNN 1x28x28": (1, 28, 28)}


def run(data: RandomImages, world: int, rounds: int) -> dict[str, Any]:
    """Samples per second over some rounds, and the share of the time that each rank waits. The first two are not
    counted: in them it is learned how long clients take.
    """

    def work(fabric: Fabric) -> dict[str, Any]:
        loop = make_loop(data, CNN, FedOBP(), fabric, participation=0.25)
        for _ in range(2):
            loop.round()
        loop.history.phases.clear()
        records = [loop.round() for _ in range(rounds)]
        seconds = sum(record.scalars["seconds"] for record in records)
        waits = loop.comm.gather(loop.history.phases.get("wait", 0.0) / seconds)
        rate = sum(record.scalars["samples"] for record in records) / seconds
        return {"rate": rate, "waits": waits, "moves": loop.history.phases["move"] / seconds}

    answer: dict[str, Any] = make_fabric(FabricConfig(accelerator="cpu", devices=world), 10).launch(work)
    return answer


def main() -> None:
    part = Part("ranks", "Samples per second on two ranks over those on one", axis="two ranks / one rank")
    options = part.options()
    turns, mean, rounds = (2, 40, 1) if options.quick else (4, 100, 6)
    for name, shape in SHAPES.items():
        data = RandomImages(shape, unequal_sizes(40, 40 * mean), 20)
        data.setup(0)
        found = take_turns({str(w): partial(run, data, w, rounds) for w in (1, 2)}, options.turns or turns, warm_up=0)
        gain = Spread.of([two["rate"] / one["rate"] for one, two in zip(found["1"], found["2"], strict=True)])
        idle = [Spread.of([answer["waits"][rank] for answer in found["2"]]).text(1, 100) for rank in (0, 1)]
        sizes = data.train_sizes.tolist()
        part.rows.append(
            {
                "net": name,
                "two ranks / one": gain.text(),
                "goal": f"at least {GOAL}",
                "samples/s on one": f"{Spread.of([answer['rate'] for answer in found['1']]).median:,.0f}",
                "on two": f"{Spread.of([answer['rate'] for answer in found['2']]).median:,.0f}",
                "rank 0 waits, %": idle[0],
                "rank 1 waits, %": idle[1],
                "states move, %": Spread.of([answer["moves"] for answer in found["2"]]).text(1, 100),
                "samples of a client": f"{min(sizes)} to {max(sizes)}",
            }
        )
        part.bars.append(Bar(name, gain, GOAL, at_least=True))
    part.finish()


if __name__ == "__main__":
    main()
