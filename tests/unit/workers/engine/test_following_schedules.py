"""Random parts on several workers, with records, silence and ends: epochs obey T1 to T5 in every schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.testing import VirtualClock
from tests.unit.workers.harness import Reading, Scheduled, Script, Watch

BOUND = 4
Stream = mp.StreamBuilder[Any, Any]
Judge = Callable[[Stream, str], tuple[Stream, Stream]]
"""Times a stream and generates its epochs, under names that begin with the text given."""

Judged = tuple[Sequence[Stream], Sequence[Stream]]
"""The streams on time, and the late ones."""


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Up to eight arrivals within a minute, event times going up by and large; some parts never have anything."""
    moments = sorted(draw(st.lists(st.integers(0, 60), max_size=8)))
    steps = st.lists(st.integers(-9, 9), max_size=3)
    arrivals = [(float(moment), [moment * 3 + step for step in draw(steps)]) for moment in moments]
    return Script(arrivals, moments[-1] + draw(st.integers(0, 30)) if moments else draw(st.integers(0, 60)))


def parts_of(prefix: str, *, least: int = 0) -> st.SearchStrategy[dict[str, Script]]:
    several = st.lists(scripts(), min_size=least, max_size=5)
    return several.map(lambda made: {f"{prefix}{number}": script for number, script in enumerate(made)})


def one_line(watch: Watch, streams: list[Stream], judge: Judge) -> Judged:
    """Epochs in each source's own branch, one exchange, then another."""
    on_time, late = zip(*(judge(stream, f"s{number}") for number, stream in enumerate(streams)), strict=True)
    again = []
    for number, stream in enumerate(on_time):
        keyed = watch.on(stream.key_by(f"key{number}", lambda r: r.at % 7), f"keyed{number}")
        again.append(watch.on(keyed.key_by(f"again{number}", lambda r: r.at % 3), f"again-keyed{number}"))
    return again, late


def union_behind(watch: Watch, streams: list[Stream], judge: Judge) -> Judged:
    """Each source has its own epochs; the streams are joined, then distributed."""
    (first, *others), late = zip(*(judge(stream, f"s{number}") for number, stream in enumerate(streams)), strict=True)
    joined = watch.on(first.union("joined", *others), "union")
    return [watch.on(joined.key_by("key", lambda r: r.at % 7), "keyed")], late


def union_before(watch: Watch, streams: list[Stream], judge: Judge) -> Judged:
    """The sources are joined first."""
    first, *others = streams
    on_time, late = judge(first.union("joined", *others), "s")
    return [watch.on(on_time.key_by("key", lambda r: r.at % 7), "keyed")], [late]


def two_exchanges(watch: Watch, streams: list[Stream], judge: Judge) -> Judged:
    """Two exchanges in one region: one that all sources feed, and one for the first source alone."""
    (first, *others), late = zip(*(judge(stream, f"s{number}") for number, stream in enumerate(streams)), strict=True)
    alone, rest = first.branch("branch", lambda r: r.at % 2)
    joined = watch.on(rest.union("joined", *others), "union")
    by_key = watch.on(joined.key_by("key", lambda r: r.at % 7), "keyed")
    return [watch.on(alone.key_by("alone", lambda r: r.at % 5), "alone-keyed"), by_key], late


def two_judges(watch: Watch, streams: list[Stream], judge: Judge) -> Judged:
    """The halves of a source are judged apart and joined again, so that one may wake what the other has passed."""
    halves = [
        judge(half, f"s{number}{name}")
        for number, stream in enumerate(streams)
        for name, half in zip("ab", stream.branch(f"half{number}", lambda r: r.number % 2), strict=True)
    ]
    (first, *others), late = zip(*halves, strict=True)
    joined = watch.on(first.union("joined", *others), "union")
    return [watch.on(joined.key_by("key", lambda r: r.at % 7), "keyed")], late


SHAPES = [one_line, union_behind, union_before, two_exchanges, two_judges]


@st.composite
def batchings(draw: st.DrawFn) -> mp.Batching:
    """Small batches and little credit, so that records and epochs are under way at every moment."""
    return mp.Batching(
        rows_max=draw(st.integers(1, 4)),
        linger_s=draw(st.sampled_from([0.0, 0.005, 3.0])),
        credit=mp.Credit(rows=draw(st.integers(1, 6))),
    )


def judged_late(readings: list[Reading]) -> set[Reading]:
    """What is late by its own part's epoch alone."""
    late, epochs = set(), dict.fromkeys((reading.part for reading in readings), MIN_EPOCH)
    for reading in readings:
        if reading.at <= epochs[reading.part]:
            late.add(reading)
        epochs[reading.part] = max(epochs[reading.part], reading.at - BOUND - 1)
    return late


@pytest.mark.long(but=("two_exchanges", "union_behind"))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_t2_no_record_is_ever_below_a_frontier_and_none_is_lost(shape: Any, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 4), "workers")
    idles = data.draw(st.lists(st.sampled_from([None, 2, 9]), min_size=8, max_size=8), "idle_after, by generator")
    poll_s = data.draw(st.sampled_from([0.0, 0.1, 1.0]), "poll_s")
    clock = VirtualClock()
    sources = [
        Scheduled(clock, data.draw(parts_of(prefix, least=prefix == "p"), prefix), poll_s=poll_s) for prefix in "pq"
    ]
    watch, job, idle_of = Watch(clock), mp.Job("parts"), dict[str, int | None]()

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
    mp.InProcess(workers, clock=clock, batch=data.draw(batchings(), "batch"), checks=data.draw(st.booleans())).run(job)

    assert watch.broken == []
    assert {frontiers[-1][1] for frontiers in watch.frontiers.values()} == {MAX_EPOCH}
    readings = [reading for source in sources for reading in source.readings()]
    assert sorted([*taken.items, *refused.items]) == sorted(readings)
    if shape is two_judges:
        return  # each judge knows half of a part's records
    late = judged_late(readings)
    assert late <= set(refused.items)
    scripts_by_part = {part: script for source in sources for part, script in source.scripts.items()}
    shortest = min((idle for idle in idle_of.values() if idle is not None), default=None)
    for reading in set(refused.items) - late:
        # Only a part that was silent for long enough can have more that is late.
        assert shortest is not None
        assert scripts_by_part[reading.part].silence_s >= shortest
