"""`JobHandle.tap` on jobs of this process, from its first record to the end of the job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.control.tap import START_S, Tap, stored_keys
from malstrom_py.workers.reports.commands import TapCommand
from malstrom_py.workers.reports.taps import TapPage
from tests.unit.workers.harness import endless, start


@pytest.fixture
def handle() -> Iterator[mp.JobHandle]:
    job, _ = endless("tapped")
    handle = start(job, 2)
    yield handle
    with suppress(mp.JobEnded):
        handle.stop(drain=False)


def test_records_come_while_the_job_is_rescaled(handle: mp.JobHandle) -> None:
    tap = handle.tap("seen")
    workers = {next(tap).worker for _ in range(100)}
    assert workers <= {0, 1}
    handle.rescale(4)
    while max(workers) < 3:
        record = next(tap)
        workers.add(record.worker)
        assert record.key in range(20)
    handle.rescale(1)
    assert tap.passed >= tap.shown > 100
    assert (tap.keyed, tap.unit, record.output) == (True, None, "out")


def test_a_key_is_filtered_before_the_bound(handle: mp.JobHandle) -> None:
    records = list(handle.tap("out", key=7, count=300))
    assert {record.key for record in records} == {7}
    values = [record.value for record in records]
    assert values == sorted(values)


def test_a_tap_ends_by_count_by_time_and_with_the_job(handle: mp.JobHandle) -> None:
    assert len(list(handle.tap("seen", count=3))) == 3
    assert list(handle.tap("seen", timeout_s=0)) == []
    tap = handle.tap("seen")
    next(tap)
    handle.stop(drain=True)
    list(tap)
    assert tap.rate() is None
    with pytest.raises(mp.JobEnded, match="cannot be tapped: it has finished"):
        handle.tap("seen")


def test_the_rate_counts_what_passes(handle: mp.JobHandle) -> None:
    tap = handle.tap("numbers")
    rate = tap.rate(0.2)
    assert rate is not None
    assert rate > 0
    assert tap.shown == 0


def test_wrong_arguments_are_refused_with_what_to_do(handle: mp.JobHandle) -> None:
    with pytest.raises(mp.PlanError, match="has no step 'nope' to tap: its steps are 'numbers', 'key', 'seen', 'out'"):
        handle.tap("nope")
    with pytest.raises(mp.PlanError, match="step 'numbers' have no keys"):
        handle.tap("numbers", key=1)
    with pytest.raises(mp.PlanError, match="key of type object cannot be sent"):
        handle.tap("seen", key=object())
    for wrong in (0, True, "3"):
        with pytest.raises(mp.PlanError, match="count must be"):
            handle.tap("seen", count=wrong)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sale:
    article: str
    paid: int


def test_objects_of_registered_classes_are_dicts_of_their_fields() -> None:
    job = mp.Job("sales")
    job.register_type(Sale)
    source = sources.Generator(lambda part, start: (Sale("tea", number) for number in count(start)))
    job.source("in", source).sink("out", sinks.Callable(lambda sale: None))
    handle = start(job)
    assert next(handle.tap("in")).value["article"] == "tea"
    handle.stop(drain=False)


def test_a_coordinator_that_counts_from_0_again_takes_nothing_back() -> None:
    pages = iter(
        [
            TapPage("a", 7, [], passed=100),
            TapPage("a", 7, [], passed=130),
            TapPage("b", 0, [], passed=4),
            TapPage("b", 0, [], passed=9),
            TapPage("", 0, [], passed=0),
            TapPage("", 0, [], passed=0),
            TapPage("c", 0, [], passed=1),
            TapPage("b", 0, [], passed=0, ended=True),
        ]
    )
    asked: list[TapCommand] = []

    def ask(command: TapCommand) -> Any:
        asked.append(command)
        return next(pages)

    clock = VirtualClock(0.0)
    tap = Tap(ask, "in", None, clock=clock)
    passed = [tap.passed for _ in range(7) if tap.look()]
    assert passed == [30, 34, 39, 39, 39, 40, 40]
    assert clock.monotonic_s() == 0.2  # without a log the job has not started again
    assert [(command.after, command.log) for command in asked[1:3]] == [(7, "a"), (7, "a")]
    assert not tap.look()


def test_a_tap_waits_for_the_start_of_its_job() -> None:
    clock = VirtualClock(0.0)
    pages = iter([TapPage("", 0, [], 0), TapPage("", 0, [], 0), TapPage("a", 0, [], 0)])
    Tap(lambda command: next(pages), "in", None, clock=clock)
    with pytest.raises(mp.DeadlineError, match="has not started within"):
        Tap(lambda command: TapPage("", 0, [], 0), "in", None, clock=clock)
    assert clock.monotonic_s() >= START_S


def test_keys_travel_in_their_stored_form() -> None:
    assert stored_keys("17", 17) != stored_keys(17, "17")
