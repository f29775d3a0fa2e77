"""The seconds of a visit's phases."""

from __future__ import annotations

from time import perf_counter

import torch


class Stopwatch:
    """Measures phases that follow each other.

    A GPU works behind the back of this process, so the clock of the process says when work was ordered, not when it was
    done. There, phases end at events in the GPU's own queue. They are read after a wait that happens anyway.

    Args:
        device: the device that does the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._laps: list[tuple[str, float | torch.cuda.Event, float | torch.cuda.Event]] = []
        self._shared: list[tuple[Stopwatch, float]] = []
        self._mark = self._now()

    def lap(self, phase: str | None) -> None:
        """Count the time since the last call for `phase`. None: do not count it."""
        now = self._now()
        if phase is not None:
            self._laps.append((phase, self._mark, now))
        self._mark = now

    def add(self, other: Stopwatch, fraction: float) -> None:
        """Count a fraction of another watch's seconds, as when several clients train together."""
        self._shared.append((other, fraction))

    def read(self) -> dict[str, float]:
        """Seconds per phase. On a GPU the work up to the last lap must be done."""
        phases: dict[str, float] = {}
        measured = [(phase, _seconds(start, stop)) for phase, start, stop in self._laps]
        measured += [(phase, s * fraction) for other, fraction in self._shared for phase, s in other.read().items()]
        for phase, seconds in measured:
            phases[phase] = phases.get(phase, 0.0) + seconds
        return phases

    def _now(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _seconds(start: float | torch.cuda.Event, stop: float | torch.cuda.Event) -> float:
    if isinstance(start, float):
        assert isinstance(stop, float), "a watch is of one kind"
        return stop - start
    assert not isinstance(stop, float), "a watch is of one kind"
    return float(start.elapsed_time(stop)) / 1000
