"""A crew whose functions take time of a virtual clock, stepped by hand: how long things take is the same each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.background import Background
from malstrom_py.workers.runtime.local_workers import LocalWorkers


class AtOnce:
    """A `Background` that has done its work by the next turn."""

    def __init__(self) -> None:
        self._back: list[tuple[Callable[[Any], None], Any]] = []

    @property
    def pending(self) -> int:
        return len(self._back)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None], *, urgent: bool = True) -> None:
        self._back.append((done, work()))

    def turn(self) -> bool:
        back, self._back = self._back, []
        for done, result in back:
            done(result)
        return bool(back)

    def close(self) -> None:
        self._back.clear()


class PromptCrew(LocalWorkers):
    def _background(self) -> Background:
        return AtOnce()


class Slowly:
    """A job of ``build(stream, slowly)``, where ``slowly`` passes a value on after ``row_s``, which may be changed.

    ``longest_s``: how long a step of all workers has taken at most since `watch`.
    """

    def __init__(
        self,
        build: Callable[[Any, Slowly], Any],
        row_s: float,
        *,
        workers: int = 1,
        interval_s: float | None = None,
        rows_max: int = 1024,
        source: Any = None,
    ) -> None:
        self.row_s = row_s
        self.clock = VirtualClock(start_s=1e6)
        self.rows = 0
        self.longest_s = 0.0
        self.largest = 0
        job = mp.Job("slowly")
        build(job.source("in", source or endless()), self)
        keeping = SnapshotUse(mp.Snapshots(MemoryStore(), interval_s=interval_s))
        batching = mp.Batching(rows_max=rows_max)
        self.crew = PromptCrew(job.plan(), workers=workers, batching=batching, clock=self.clock, keeping=keeping)
        self.crew.begin()
        self.crew.open()

    def __call__(self, value: Any) -> Any:
        self.rows += 1
        self.clock.advance(self.row_s)
        return value

    def by_batch(self, batch: Any) -> None:
        """The same as the function of a sink that takes batches."""
        self.rows += len(batch)
        self.largest = max(self.largest, len(batch))
        self.clock.advance(self.row_s * len(batch))

    def step(self) -> None:
        began_s = self.clock.monotonic_s()
        self.crew.step()
        self.longest_s = max(self.longest_s, self.clock.monotonic_s() - began_s)

    def go(self, duration_s: float) -> Slowly:
        """So long, of the clock."""
        until_s = self.clock.monotonic_s() + duration_s
        while self.clock.monotonic_s() < until_s:
            self.step()
        return self

    def until_done(self, ask: Callable[[Callable[[Any], None]], None]) -> float:
        """How long it takes until what is asked for is done."""
        done: list[Any] = []
        began_s = self.clock.monotonic_s()
        ask(done.append)
        while not done:
            self.step()
            assert self.clock.monotonic_s() < began_s + 300
        assert not isinstance(done[0], BaseException), done[0]
        return self.clock.monotonic_s() - began_s

    def snapshot_s(self) -> float:
        """How long a snapshot takes from the request to its end."""
        return self.until_done(self.crew.snapshot)

    def rescale_s(self, size: int) -> float:
        """How long it takes to go to ``size`` workers."""
        return self.until_done(lambda done: self.crew.rescale(size, done))

    def gaps_s(self, duration_s: float) -> list[float]:
        """The times between the snapshots of so long."""
        until_s = self.clock.monotonic_s() + duration_s
        made, at_s, gaps = 0, self.clock.monotonic_s(), list[float]()
        while self.clock.monotonic_s() < until_s:
            self.step()
            status = self.crew.snapshots
            if status is not None and status.made > made:
                made = status.made
                gaps.append(self.clock.monotonic_s() - at_s)
                at_s = self.clock.monotonic_s()
        return gaps


def endless(parts: int = 4) -> Any:
    return sources.Generator(lambda part, start: iter(range(start or 0, 1 << 60)), parts=parts)


def into_slow_sink(stream: Any, slowly: Slowly) -> None:
    stream.key_by("key", lambda n: n % 1000).count("n").sink("out", sinks.Callable(slowly))
