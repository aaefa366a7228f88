"""A source whose parts get their records at given moments of a clock, and a step that watches the promise of epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import malstrom_py as mp
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock, as_step


class Reading(NamedTuple):
    """A record: of which part, the how many-th there, at what event time."""

    part: str
    number: int
    at: int


@dataclass(frozen=True)
class Script:
    """What a part has: event times by the second of the clock at which they come, and when the part ends."""

    arrivals: Sequence[tuple[float, Sequence[int]]]
    end_s: float

    @property
    def silence_s(self) -> float:
        """The longest time without a record, from the opening to the end."""
        moments = [0.0, *(at_s for at_s, times in self.arrivals if times), self.end_s]
        return max(later - earlier for earlier, later in pairwise(moments))


class Scheduled:
    """Parts by name. Every poll takes ``poll_s`` of the clock."""

    def __init__(self, clock: VirtualClock, scripts: Mapping[str, Script], *, poll_s: float = 0.0) -> None:
        self.clock = clock
        self.scripts = scripts
        self.poll_s = poll_s

    def list_parts(self) -> list[Part]:
        return [Part(name) for name in self.scripts]

    def build_part(self, part: Part, state: Any) -> ScheduledPart:
        return ScheduledPart(self, part, state or 0)

    def readings(self) -> list[Reading]:
        """All records there are."""
        return [reading for name in self.scripts for _, reading in _readings(name, self.scripts[name])]


class ScheduledPart:
    def __init__(self, source: Scheduled, name: str, position: int) -> None:
        self._source = source
        self._end_s = source.scripts[name].end_s
        self._left = _readings(name, source.scripts[name])[position:]
        self._position = position

    def poll(self, rows_max: int) -> list[Reading] | None:
        self._source.clock.advance(self._source.poll_s)
        now_s = self._source.clock.monotonic_s()
        due = [reading for at_s, reading in self._left[:rows_max] if at_s <= now_s]
        del self._left[: len(due)]
        self._position += len(due)
        return due or None

    def is_finished(self) -> bool:
        return not self._left and self._source.clock.monotonic_s() >= self._end_s

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""


def _readings(name: str, script: Script) -> list[tuple[float, Reading]]:
    moments = [(at_s, time) for at_s, times in script.arrivals for time in times]
    return [(at_s, Reading(name, number, time)) for number, (at_s, time) in enumerate(moments)]


@dataclass
class Watch:
    """What steps called by ``on`` have seen, by (step, worker): frontiers, and records below them."""

    clock: VirtualClock
    frontiers: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def on(self, stream: mp.StreamBuilder[Any, Any], name: str) -> Any:
        """Return ``stream`` after a step that records it."""
        return as_step(partial(_Watching, watch=self), name=name)(stream)

    def reached(self, name: str, worker: int) -> int:
        """The frontier of a step."""
        seen = self.frontiers.get((name, worker))
        return seen[-1][1] if seen else MIN_EPOCH


class _Watching(Operator):
    def __init__(self, context: StepContext, *, watch: Watch) -> None:
        super().__init__(context)
        self._watch = watch
        self._seen = watch.frontiers.setdefault((context.step, context.worker), [])

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        frontier = self._seen[-1][1] if self._seen else MIN_EPOCH
        below = [time for time in batch.timestamps or () if time <= frontier]
        if below:
            self._watch.broken.append(f"{self.context.step} on {self.context.worker}: {below} at frontier {frontier}")
        out.send(batch)

    def rewind(self, epoch: mp.Epoch) -> mp.Epoch:
        # R2: in a source region a promise may go back, by a part that has been gained.
        self._seen.append((self._watch.clock.monotonic_s(), epoch.time))
        return epoch

    def on_epoch(self, epoch: mp.Epoch, out: Outlet) -> None:
        if self._seen and epoch.time < self._seen[-1][1]:
            self._watch.broken.append(f"{self.context.step} on {self.context.worker}: went back to {epoch.time}")
        if not self._seen or epoch.time > self._seen[-1][1]:
            self._seen.append((self._watch.clock.monotonic_s(), epoch.time))
        out.forward(epoch)
