"""A source that falls silent is an event, once until it has records again, also through rescales and crashes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks
from malstrom_py.clock import VirtualClock
from malstrom_py.sources import Part
from tests.lives import check_lives

SILENT_S = 30.0
BREAK_S = (60.0, 130.0)


class Numbers:
    """A part with a number every 10 s, and none within `BREAK_S`."""

    def __init__(self, clock: VirtualClock, position: int) -> None:
        self._clock, self._position = clock, position

    def poll(self, rows_max: int) -> list[int] | None:
        now_s = self._clock.monotonic_s()
        if self.is_finished() or BREAK_S[0] < now_s < BREAK_S[1] or now_s <= 10 * self._position:
            return None
        self._position += 1
        return [self._position]

    def is_finished(self) -> bool:
        return self._position >= 16

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""


class TwoParts:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def list_parts(self) -> list[Part]:
        return [Part("a"), Part("b")]

    def build_part(self, part: Part, state: Any) -> Numbers:
        return Numbers(self._clock, state or 0)


@pytest.mark.parametrize("seed", range(10))
def test_a_break_of_all_parts_is_reported_once_and_so_is_its_end(seed: int) -> None:
    clock, seen, out = VirtualClock(), list[events.AnyEvent](), sinks.Memory()
    job = mp.Job("silent")
    numbers = job.source("in", TwoParts(clock), silent_after=timedelta(seconds=SILENT_S))
    numbers.key_by("parity", lambda number: number % 2).count("seen").sink("out", out)
    mp.Simulation(workers=2, seed=seed, clock=clock, on_event=seen.append).run(job)
    kinds = (events.InputSilent, events.InputRecovered, events.InputClosed)
    silent, recovered, closed = [event for event in seen if isinstance(event, kinds)]
    assert isinstance(silent, events.InputSilent)
    assert SILENT_S <= silent.seconds < BREAK_S[1] - BREAK_S[0]
    assert (recovered, closed) == (events.InputRecovered("in"), events.InputClosed("in"))
    check_lives(seen, sources=["in"])
