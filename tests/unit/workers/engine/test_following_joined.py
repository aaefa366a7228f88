"""T2, T7: a stream that no worker reads follows what it is joined with, so that a join gives results without it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, windows
from malstrom_py.testing import VirtualClock
from tests.unit.workers.harness import Scheduled, Script

IDLE_AFTER_S = 5
END_S = 60.0
Keyed = mp.KeyedStreamBuilder[Any, Any]
How = Callable[[Keyed, Keyed], Any]

LIVE = Script(tuple((float(at_s), [at_s * 1_000]) for at_s in range(25)), END_S)
"""A record a second, for 25 s."""


def results(how: How, left: Script, right: Script, *, workers: int = 1, idle: bool = True) -> dict[Any, float]:
    """Return what comes out before the sources end, with the first moment at which it did, and what is late."""
    clock, job, seen = VirtualClock(), mp.Job("joined"), dict[Any, float]()

    def stream(name: str, script: Script) -> Keyed:
        idle_after = timedelta(seconds=IDLE_AFTER_S) if idle else None
        timed = job.source(name, Scheduled(clock, {name: script})).assign_timestamps(f"{name}-at", lambda one: one.at)
        on_time, late = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(1_000), idle_after=idle_after)
        late.inspect(f"{name}-late", lambda one: seen.setdefault(("late", one.at), clock.monotonic_s())).sink(
            f"{name}-gone", sinks.Memory()
        )
        return on_time.key_by(f"{name}-key", lambda one: "all").map(f"{name}-time", lambda one: one.at)

    joined = how(stream("left", left), stream("right", right))
    joined.inspect("see", lambda value: seen.setdefault(value, clock.monotonic_s())).sink("out", sinks.Memory())
    mp.run(job, workers, clock=clock)
    return {value: at_s for value, at_s in seen.items() if at_s < END_S}


def by_window(left: Keyed, right: Keyed) -> Any:
    return left.join("join", right, window=windows.tumbling(10_000), how="left").map("of-left", lambda pair: pair.left)


def by_interval(left: Keyed, right: Keyed) -> Any:
    return left.join_interval("join", right, lower=0, upper=1_000, how="left").map("of-left", lambda pair: pair.left)


def as_of(left: Keyed, right: Keyed) -> Any:
    return left.join_asof("join", right).map("of-left", lambda pair: pair.left)


def with_table(left: Keyed, right: Keyed) -> Any:
    return left.join_table("join", right, wait=1_000, how="left").map("of-left", lambda pair: pair.left)


def united(left: Keyed, right: Keyed) -> Any:
    counted = left.union("both", right).window("ten", windows.tumbling(10_000)).count()
    return counted.map("window-start", lambda window: int(window.start))


def after_another_exchange(left: Keyed, right: Keyed) -> Any:
    again = right.count("count").key_by("again", lambda count: "all")
    return left.join("join", again, window=windows.tumbling(10_000), how="left").map("of-left", lambda pair: pair.left)


WAYS = [by_window, by_interval, as_of, with_table, united, after_another_exchange]
SILENT = Script((), END_S)


@pytest.mark.parametrize(("how", "workers"), [*((how, 1) for how in WAYS), (by_window, 2)])
def test_t2_a_side_without_any_record_follows_the_other_one(how: How, workers: int) -> None:
    assert not results(how, LIVE, SILENT, workers=workers, idle=False)
    seen = results(how, LIVE, SILENT, workers=workers)
    assert seen[10_000] < 25


@pytest.mark.parametrize("workers", [1, 2])
def test_t2_a_side_that_was_silent_long_ago_follows_the_other_one(workers: int) -> None:
    long_ago = Script(((0.0, [-86_400_000]),), END_S)
    assert results(by_window, LIVE, long_ago, workers=workers)[10_000] < 25


@pytest.mark.parametrize(("how", "workers"), [*((how, 1) for how in WAYS), (by_window, 2)])
def test_t7_once_all_are_silent_a_side_without_any_record_goes_by_the_clock_too(how: How, workers: int) -> None:
    seen = results(how, LIVE, SILENT, workers=workers)
    last = max(seen)
    assert last == (20_000 if how is united else 24_000)


@pytest.mark.parametrize("workers", [1, 2])
def test_t7_beside_a_side_that_has_ended_it_continues_from_there_by_the_clock(workers: int) -> None:
    ended = Script(((0.0, [1_000, 2_000, 3_000]),), 1.0)
    seen = results(by_window, ended, SILENT, workers=workers)
    assert 10 < seen[3_000] < 30


def test_t7_a_silence_that_the_other_side_has_interrupted_begins_anew() -> None:
    again = Script((*((float(at_s), [at_s * 1_000]) for at_s in range(5)), (30.0, [1_000_000])), END_S)
    assert results(by_window, again, SILENT)[1_000_000] < END_S


def test_t2_who_wakes_below_what_has_been_followed_is_late_and_above_it_is_on_time() -> None:
    wakes = Script(((20.0, [5_000, 20_000]),), END_S)
    seen = results(by_window, LIVE, wakes)
    assert [value for value in seen if isinstance(value, tuple)] == [("late", 5_000)]


def test_t2_two_sides_without_records_wait_for_each_other() -> None:
    assert not results(by_window, SILENT, SILENT)
