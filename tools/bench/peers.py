"""A round of FedAvg in other frameworks, on the same clients, net and number of steps as ours and the bare loop.

    python tools/bench/peers.py --folder ~/peers

The frameworks come from the package index, each into an environment of its own in the folder. They use the torch of
the environment that runs this command. A framework that cannot be installed or does not run is named with the reason.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import plain_nets
import torch
from bare_process import BareProcess
from federation import LR, MOMENTUM, RandomImages, make_loop, unequal_sizes, work_of
from measure import Bar, Part, Spread, ratios, take_turns
from two_cores import CLIENTS, EPOCHS, SAMPLES, ours, parts_of, together

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.nets import CNN

JOBS = Path(__file__).with_name("peer_jobs")
BASE, OURS = "bare loop that reuses memory, two processes", "ours, two ranks"
LIMIT = 1800
"""Seconds after which an installation or a job counts as failed."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""The environment of jobs that only train: nothing is reported to anybody."""


@dataclass(frozen=True)
class Peer:
    """A framework: what is installed, the job that runs it, and in how many processes the job is started."""

    package: str
    job: str
    how: str
    processes: int = 1


PEERS = {
    "pfl-research": Peer("pfl[pytorch]", "pfl_research.py", "two processes", 2),
    "Flower": Peer("flwr[simulation]", "flower.py", "two workers"),
    "fluke": Peer("fluke-fl", "fluke_fl.py", "one process, two threads"),
}


class PeerError(Exception):
    """A framework cannot be installed or does not run."""


def install(peer: Peer, folder: Path) -> Path:
    """The Python of an environment with the framework. It is made if it is missing."""
    home = folder / peer.job.removesuffix(".py")
    python, done = home / "bin/python", home / "installed"
    if not done.exists():
        call([sys.executable, "-m", "venv", "--without-pip", "--clear", str(home)])
        packages = next(home.glob("lib/python*/site-packages"))
        (packages / "shared_torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
        call([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", peer.package])
        done.touch()
    return python


def call(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise PeerError(f"no end after {LIMIT} s") from None
    if done.returncode:
        raise PeerError(reason(done.stderr))


def reason(text: str) -> str:
    """The last line that says something."""
    return next((line.strip()[:100] for line in reversed(text.splitlines()) if line.strip()), "no message")


def peer_seconds(python: Path, peer: Peer, work: Path, limit: float = LIMIT) -> float:
    """Seconds of the second round of a job. Nothing of the job is left behind."""
    addresses = ",".join(f"localhost:{free_port()}" for _ in range(peer.processes))
    started = []
    for rank in range(peer.processes):
        more = {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)} if peer.processes > 1 else {}
        started.append(
            subprocess.Popen(
                [str(python), "-W", "ignore", str(JOBS / peer.job), str(work)],
                env={**os.environ, **QUIET, **more, "PYTHONPATH": str(JOBS)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=work.parent,
                start_new_session=True,
            )
        )
    try:
        answers = [process.communicate(timeout=limit) for process in started]
    except subprocess.TimeoutExpired:
        raise PeerError(f"no end after {limit:.0f} s") from None
    finally:
        for process in started:
            end_group(process)
    if any(process.returncode for process in started):
        raise PeerError(reason("\n".join(error for _, error in answers)))
    return max(float(json.loads(out.strip().splitlines()[-1])["seconds"]) for out, _ in answers)


def end_group(process: subprocess.Popen[str]) -> None:
    """End a job with all workers that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def write_work(data: RandomImages, work: Any, epochs: int, path: Path) -> None:
    """The samples, clients and first model as plain tensors, which any torch can read."""
    clients = [data.train_indices(client).clone() for client in range(data.num_clients)]
    facts = {"x": work.x, "y": work.y, "initial": work.initial, "clients": clients, "epochs": epochs}
    torch.save(facts | {"batch_size": 32, "lr": LR, "momentum": MOMENTUM}, path)


def main() -> None:
    part = Part("peers", "A round on two cores, over a bare loop that reuses memory", axis="over the bare loop")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pfl_lightning_peers"
    part.more.add_argument("--folder", type=Path, default=cache, help="where the environments are")
    part.more.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="which of them")
    part.more.add_argument("--limit", type=float, default=LIMIT, help="seconds that the first job of each may take")
    options = part.options()
    folder = options.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    samples, epochs = (160, 1) if options.quick else (SAMPLES, EPOCHS)
    data = RandomImages((3, 32, 32), unequal_sizes(CLIENTS, samples), 1)
    work = work_of(make_loop(data, CNN, FedAvg(), local_epochs=epochs), plain_nets.cnn)
    write_work(data, work, epochs, folder / "work.pt")
    bare = [BareProcess(half, "channels_last", reuse=True) for half in parts_of(work, 2)]
    things: dict[str, Any] = {BASE: partial(together, bare), OURS: partial(ours, data, epochs, "32-true")}
    failed: dict[str, str] = {}
    for name in options.peers:
        try:
            python = install(PEERS[name], folder)
            seconds = peer_seconds(python, PEERS[name], folder / "work.pt", options.limit)
            print(f"{name}: {seconds:.1f} s, which do not count", flush=True)
        except (PeerError, OSError) as error:
            failed[name] = str(error)
            print(f"{name}: {error}", flush=True)
        else:
            things[name] = partial(peer_seconds, python, PEERS[name], folder / "work.pt")
    for name in (BASE, OURS):
        things[name]()  # to get warm, as the others are by now
    found = take_turns(things, options.turns or (1 if options.quick else 4), warm_up=0)
    for name, seconds in found.items():
        ratio, over_ours = ratios(seconds, found[BASE]), ratios(seconds, found[OURS])
        how = PEERS[name].how if name in PEERS else ""
        part.rows.append(
            {
                "what": f"{name}, {how}" if how else name,
                "seconds a round": Spread.of(seconds).text(1),
                "over the bare loop": ratio.text(),
                "over ours": over_ours.text(),
            }
        )
        part.bars.append(Bar(name, ratio))
    for name, text in failed.items():
        part.rows.append({"what": name, "seconds a round": text, "over the bare loop": "", "over ours": ""})
    for process in bare:
        process.end()
    part.finish()


if __name__ == "__main__":
    main()
