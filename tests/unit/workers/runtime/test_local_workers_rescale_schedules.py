"""Random parts on workers that come and go: records, silence, ends, moves. Epochs keep their promise (P2, T1 to T5)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.testing import VirtualClock
from tests.unit.workers.engine.test_following_schedules import (
    BOUND,
    SHAPES,
    Stream,
    batchings,
    judged_late,
    parts_of,
    two_judges,
)
from tests.unit.workers.harness import Reading, Running, Scheduled, Watch

REQUESTS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4)), min_size=1, max_size=5)
"""(steps before it, size)"""


@pytest.mark.long("one_line")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_p2_no_record_is_ever_below_a_frontier_whoever_comes_and_goes(shape: Any, data: st.DataObject) -> None:
    idles = data.draw(st.lists(st.sampled_from([None, 2, 9]), min_size=8, max_size=8), "idle_after, by generator")
    poll_s = data.draw(st.sampled_from([0.0, 0.1, 1.0]), "poll_s")
    clock = VirtualClock()
    sources = [
        Scheduled(clock, data.draw(parts_of(prefix, least=prefix == "p"), prefix), poll_s=poll_s) for prefix in "pq"
    ]
    watch, job, idle_of = Watch(clock), mp.Job("parts", slots=8), dict[str, int | None]()

    def judge(stream: Stream, name: str) -> tuple[Stream, Stream]:
        idle_of[name] = idles[len(idle_of)]
        idle_after = None if idle_of[name] is None else timedelta(seconds=idle_of[name] or 0)
        timed = stream.assign_timestamps(f"{name}-at", lambda r: r.at)
        on_time, late = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(BOUND), idle_after=idle_after)
        return watch.on(on_time, f"{name}-on-time"), late

    streams = [job.source(f"in{number}", source) for number, source in enumerate(sources)]
    taken, refused = sinks.Memory(), sinks.Memory()
    for kind, sink, ends in zip(("on-time", "late"), (taken, refused), shape(watch, streams, judge), strict=True):
        for number, end in enumerate(ends):
            end.sink(f"{kind}{number}", sink)
    running = Running(
        job,
        workers=data.draw(st.integers(1, 4), "workers"),
        clock=clock,
        batching=data.draw(batchings(), "batch"),
        checks=data.draw(st.booleans()),
        slots_per_move=data.draw(st.sampled_from([1, 3, 8]), "slots_per_move"),
    )
    for steps, size in data.draw(REQUESTS, "requests"):
        running.step(steps).ask(size)
    running.finish()

    assert watch.broken == []
    members = running.crew.members
    assert {seen[-1][1] for (_, worker), seen in watch.frontiers.items() if worker in members} == {MAX_EPOCH}
    readings = [reading for source in sources for reading in source.readings()]
    assert sorted([*taken.items, *refused.items]) == sorted(readings)
    check_late(shape, sources, idle_of, set(refused.items))


def check_late(shape: Any, sources: list[Scheduled], idle_of: dict[str, int | None], refused: set[Reading]) -> None:
    """What is late by its own part's epoch is, and more only where a part was silent for long enough."""
    if shape is two_judges:
        return  # each judge knows half of a part's records
    late = judged_late([reading for source in sources for reading in source.readings()])
    assert late <= refused
    scripts_by_part = {part: script for source in sources for part, script in source.scripts.items()}
    shortest = min((idle for idle in idle_of.values() if idle is not None), default=None)
    for reading in refused - late:
        assert shortest is not None
        assert scripts_by_part[reading.part].silence_s >= shortest


SPAN = 10


class Windows(mp.KeyedLogic[int, Reading, tuple[int, tuple[int, ...]], dict[int, tuple[int, ...]]]):
    """Tumbling windows of `SPAN`: the numbers of the records of a key in each, sent once, when its end is reached."""

    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        start = message.timestamp // SPAN * SPAN
        output.set_timer(message.key, start + SPAN - 1)
        state = dict(key_state or {})
        state[start] = (*state.get(start, ()), message.value.number)
        return state

    def on_timer(self, key: int, time: int, key_state: Any, output: Any) -> Any:
        start = time // SPAN * SPAN
        state = dict(key_state)
        output.emit(key, (start, tuple(sorted(state.pop(start)))), time)
        return state or None


@settings(max_examples=30)
@given(
    parts=parts_of("p", least=1),
    workers=st.integers(1, 4),
    batching=batchings(),
    requests=REQUESTS,
    slots_per_move=st.sampled_from([1, 3, 8]),
)
def test_p2_each_window_is_told_once_and_is_right_at_both_stages(
    parts: Any, workers: int, batching: mp.Batching, requests: list[tuple[int, int]], slots_per_move: int
) -> None:
    clock = VirtualClock()
    source, out, again = Scheduled(clock, parts), sinks.Memory(), sinks.Memory()
    watch, job = Watch(clock), mp.Job("windows", slots=8)
    timed = job.source("in", source).assign_timestamps("at", lambda r: r.at)
    on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(BOUND))
    late.sink("late", sinks.Memory())
    first = watch.on(on_time.key_by("key", lambda r: r.at % 5), "keyed").stateful_op("windows", Windows())
    first.sink("out", out)
    second = watch.on(first.key_by("again", lambda window: window[0] % 3), "again-keyed")
    second.stateful_op("counted", WindowsOfWindows()).sink("counted-out", again)
    running = Running(job, workers=workers, clock=clock, batching=batching, slots_per_move=slots_per_move)
    for steps, size in requests:
        running.step(steps).ask(size)
    running.finish()
    assert watch.broken == []
    readings = source.readings()
    kept = [reading for reading in readings if reading not in judged_late(readings)]
    expected: dict[tuple[int, int], list[int]] = {}
    for reading in kept:
        expected.setdefault((reading.at % 5, reading.at // SPAN * SPAN), []).append(reading.number)
    found = {(key, start): list(numbers) for key, windows in out.by_key.items() for start, numbers in windows}
    assert found == {window: sorted(numbers) for window, numbers in expected.items()}
    assert len(out.items) == len(expected)
    starts = Counter(start for _, start in expected)
    assert Counter(dict(again.items)) == starts
    assert len(again.items) == len(starts)


class WindowsOfWindows(mp.KeyedLogic[int, Any, tuple[int, int], dict[int, int]]):
    """How many windows of the stage before it began at each time: sent once, when that time is over."""

    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        start = message.value[0]
        output.set_timer(message.key, start + SPAN - 1)
        return {**(key_state or {}), start: (key_state or {}).get(start, 0) + 1}

    def on_timer(self, key: int, time: int, key_state: Any, output: Any) -> Any:
        start = time - SPAN + 1
        state = dict(key_state)
        output.emit(key, (start, state.pop(start)), time)
        return state or None
