"""`source` and parts without rows: which are reported, since when, and which never are (T2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from malstrom_py.data.messages import PartQuiet
from malstrom_py.errors import MalformedRecord
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from tests.unit.operators.scripted import Scripted
from tests.unit.operators.stepping import Stepped

LINGER_S = 1.0


class Reading:
    """A source step whose parts are polled by hand."""

    def __init__(self, scripts: dict[str, Any], on_error: Any = "fail") -> None:
        self.source = Scripted(scripts)
        self.step = Stepped(partial(ReadSource, source=self.source), on_error=on_error)
        operator = self.step.operator
        assert isinstance(operator, ReadSource)
        self.operator = operator
        self.clock = VirtualClock()
        self.step.call(partial(operator.open, parts=operator.list_parts([0])[0]))

    def poll(self, *, after_s: float = 0.0, times: int = 1) -> Reading:
        self.clock.advance(after_s)
        for _ in range(times):
            self.step.call(partial(self.operator.poll, rows_max=10, linger_s=LINGER_S, clock=self.clock))
        return self

    @property
    def quiet(self) -> list[tuple[str, float]]:
        return [
            (message.part.removeprefix("under-test/"), message.quiet_s)
            for message in self.step.messages()
            if isinstance(message, PartQuiet)
        ]


def test_t2_a_part_is_quiet_since_the_first_time_it_had_nothing() -> None:
    reading = Reading({"a": [[1], None, None, [], [2], None, None, [3]]})
    reading.poll().poll(after_s=5.0)
    assert reading.quiet == []
    reading.poll(after_s=2.0).poll(after_s=3.0)
    assert reading.quiet == [("a", 2.0), ("a", 5.0)]
    reading.poll(after_s=10.0)  # it has something
    reading.poll(after_s=10.0).poll(after_s=4.0)
    assert reading.quiet[2:] == [("a", 4.0)]


def test_t2_a_part_that_never_had_anything_is_quiet_too() -> None:
    assert Reading({"a": [None] * 9}).poll().poll(after_s=7.0).quiet == [("a", 7.0)]


def test_t2_a_part_that_is_not_asked_is_not_quiet() -> None:
    reading = Reading({"a": [[1], [2], [3], None, None]}).poll().poll(after_s=1_000.0).poll(after_s=1_000.0)
    assert reading.quiet == []
    # Nor is the time before it was first found empty counted.
    assert reading.poll(after_s=1_000.0).quiet == []


def test_t2_parts_that_wait_to_be_opened_are_not_quiet() -> None:
    reading = Reading({f"p{number}": [None] * 99 for number in range(300)})
    for _ in range(3):
        reading.poll(after_s=LINGER_S * 8, times=256)
    assert {part for part, _ in reading.quiet} == {f"p{number}" for number in range(256)}


def test_t2_a_part_that_is_finished_is_not_quiet() -> None:
    reading = Reading({"a": [[1], None, None], "b": [None] * 9}).poll(times=2).poll(after_s=2.0, times=2)
    assert reading.quiet == [("b", 2.0)]
    # At this poll "a" has nothing for the second time, and finishes.
    reading.poll(after_s=5.0, times=2)
    assert reading.quiet == [("b", 2.0), ("b", 7.0)]
    assert reading.source.closed["a"] == 1


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_t2_a_part_with_records_that_cannot_be_read_is_not_quiet(on_error: Any) -> None:
    bad = MalformedRecord("no json", record="{")
    reading = Reading({"a": [None, bad, None, None]}, on_error=on_error)
    reading.poll().poll(after_s=5.0).poll(after_s=5.0)
    assert reading.quiet == []


def test_t2_a_part_that_was_taken_over_starts_anew() -> None:
    giver, taker = (Reading({"a": [None] * 9}) for _ in range(2))
    giver.poll().poll(after_s=50.0)
    released = giver.step.call(partial(giver.operator.release, part=giver.operator.list_parts([0])[0][0]))
    taker.step.call(partial(taker.operator.release, part=taker.operator.list_parts([0])[0][0]))
    taker.step.call(partial(taker.operator.take, part=Part("a"), position=released[0], state={}))
    taker.clock.advance(100.0)
    assert taker.poll().poll(after_s=3.0).quiet == []  # it is not asked yet
    taker.operator.poll_gained()
    assert taker.poll().poll(after_s=3.0).quiet == [("a", 3.0)]
