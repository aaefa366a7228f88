"""Sources in memory and from a generator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import VirtualClock
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.sources.base import Part
from malstrom_py.sources.generator import Generator
from malstrom_py.workers.remote.packed_plan import pack_plan
from tests.unit.sources.reading import read_source


def read(source: sources.Memory[Any], part: str, rows_max: int, state: Any = None) -> list[Any]:
    built = source.build_part(Part(part), state)
    rows: list[Any] = []
    while True:
        polled = built.poll(rows_max)
        assert len(polled) <= rows_max
        rows += polled
        if built.is_finished():
            return rows


@given(items=st.lists(st.integers(), max_size=30), parts=st.integers(1, 5), rows_max=st.integers(1, 7))
def test_items_are_dealt_round_robin_and_keep_their_order(items: list[int], parts: int, rows_max: int) -> None:
    source = sources.Memory(items, parts=parts)
    assert source.list_parts() == [str(n) for n in range(parts)]
    assert [read(source, part, rows_max) for part in source.list_parts()] == [items[n::parts] for n in range(parts)]


@pytest.mark.parametrize(
    "items", [range(3), iter([0, 1, 2]), (n for n in range(3)), (0, 1, 2), {0: "a", 1: "b", 2: "c"}]
)
def test_any_iterable_will_do_and_is_taken_once(items: Any) -> None:
    job = mp.Job("a")
    stream = job.source("in", sources.Memory(items))
    assert mp.collect(stream) == mp.collect(stream) == [0, 1, 2]


def test_what_is_polled_is_not_the_list_of_the_user() -> None:
    items = [1, 2, 3]
    sources.Memory(items).build_part(Part("0"), None).poll(10).append(4)
    assert items == [1, 2, 3]


def test_a_source_without_items_ends() -> None:
    assert mp.collect(mp.Job("a").source("in", sources.Memory([], parts=3))) == []


@pytest.mark.parametrize("parts", [0, -1, 1.5, "2", None, True])
def test_parts_are_a_whole_number_above_0(parts: Any) -> None:
    with pytest.raises(PlanError, match=r"sources\.Memory: parts"):
        sources.Memory([1], parts=parts)
    with pytest.raises(PlanError, match=r"sources\.Generator: parts"):
        Generator(breaks_at_five, parts=parts)


@pytest.mark.parametrize("items", [None, 7])
def test_what_is_no_iterable_is_refused(items: Any) -> None:
    with pytest.raises(PlanError, match=r"sources\.Memory takes an iterable of items, got"):
        sources.Memory(items)


def test_the_text_tells_how_many_and_no_item() -> None:
    assert repr(sources.Memory(["secret"] * 3, parts=2)) == "Memory(3 items in 2 partitions)"


FIRST = Part("0")


def breaks_at_five(part: int, start: int) -> Iterator[int]:
    yield from range(start, 5)
    raise ValueError("broken pipe of the user")


def test_every_part_is_read_by_its_number() -> None:
    source = Generator(lambda part, start: iter([(part, start)]), parts=3)
    assert source.list_parts() == ["0", "1", "2"]
    assert read_source(source) == [(0, 0), (1, 0), (2, 0)]


def test_no_more_items_are_taken_than_are_polled() -> None:
    taken: list[int] = []

    def endless(part: int, start: int) -> Iterator[int]:
        for number in count(start):
            taken.append(number)
            yield number

    part = Generator(endless).build_part(FIRST, None)
    part.poll(3)
    assert taken == [0, 1, 2]
    assert not part.is_finished()


def test_what_came_before_an_error_is_delivered_before_it() -> None:
    part = Generator(breaks_at_five).build_part(FIRST, None)
    assert part.poll(3) == [0, 1, 2]
    assert part.poll(3) == [3, 4]
    assert part.snapshot() == 5
    with pytest.raises(SourceError) as raised:
        part.poll(3)
    assert isinstance(raised.value.__cause__, ValueError)
    message = str(raised.value)
    assert "partition 0 after item 5" in message
    assert f"breaks_at_five at {Path(__file__)}:{breaks_at_five.__code__.co_firstlineno + 2}" in message
    assert not part.is_finished()


def test_an_error_is_raised_again_when_it_is_polled_again() -> None:
    part = Generator(breaks_at_five).build_part(FIRST, 5)
    for _ in range(2):
        with pytest.raises(SourceError, match="after item 5: ValueError"):
            part.poll(1)


def test_a_function_that_gives_no_iterator_is_told_as_such() -> None:
    not_iterable: Any = lambda part, start: 5  # noqa: E731
    with pytest.raises(SourceError, match="TypeError"):
        Generator(not_iterable).build_part(FIRST, None).poll(1)


def test_the_iterator_is_closed_with_the_part() -> None:
    closed = []

    def watched(part: int, start: int) -> Iterator[int]:
        try:
            yield from count(start)
        finally:
            closed.append(part)

    part = Generator(watched).build_part(FIRST, None)
    part.poll(1)
    part.close()
    assert closed == [0]


def test_an_error_while_closing_names_the_function() -> None:
    def stubborn(part: int, start: int) -> Iterator[int]:
        try:
            yield from count(start)
        finally:
            raise KeyError("left open")

    part = Generator(stubborn).build_part(FIRST, None)
    part.poll(1)
    with pytest.raises(SourceError, match="stubborn"):
        part.close()


def test_what_cannot_be_called_is_refused() -> None:
    not_callable: Any = [1, 2, 3]
    with pytest.raises(PlanError, match="list"):
        Generator(not_callable)


Marked = sources.Memory


def sums(items: list[Any], parts: int = 1) -> tuple[mp.Job, sinks.Memory]:
    """A job whose last figure says which items it has counted, each of them once."""
    job, out = mp.Job("sums"), sinks.Memory()
    job.source("in", Marked[int](items, parts=parts)).key_by("one", lambda number: 1).sum("sum").sink("out", out)
    return job, out


def run(items: list[Any], store: MemoryStore, clock: VirtualClock | None = None, **options: Any) -> list[int]:
    job, out = sums(items)
    mp.run(job, snapshots=mp.Snapshots(store), clock=clock or VirtualClock(), **options)
    return out.items


def test_a_run_ends_at_a_mark_and_the_next_continues_after_it() -> None:
    items = [1, 2, Marked.EOF(), 4, Marked.EOF(), Marked.EOF(), 8]
    store = MemoryStore()
    assert [run(items, store) for _ in range(6)] == [[1, 3], [7], [], [15], [], []]


def test_without_snapshots_each_run_ends_at_the_first_mark() -> None:
    source = Marked[int]([1, Marked.EOF(), 2])
    assert [mp.collect(mp.Job("a").source("in", source)) for _ in range(2)] == [[1], [1]]


def test_a_run_breaks_once_and_the_restart_resumes() -> None:
    clock = VirtualClock()
    assert run([1, 2, Marked.ABORT(), 4], MemoryStore(), clock) == [1, 3, 7]
    assert clock.slept_s, "there was a restart"


def test_without_restarts_the_next_run_resumes_from_the_last_snapshot() -> None:
    items = [1, Marked.EOF(), 2, Marked.ABORT(), Marked.ABORT(), 4]
    store = MemoryStore()
    assert run(items, store) == [1]
    for _ in range(2):
        with pytest.raises(SourceError, match=r"source 'in'.*broken at item .*sources\.Memory\.ABORT"):
            run(items, store, restart=mp.Restart(max_restarts=0))
    assert run(items, store, restart=mp.Restart(max_restarts=0)) == [3, 7]


def test_a_pause_takes_time_of_the_job() -> None:
    clock, times = VirtualClock(), []
    stream = mp.Job("a").source("in", Marked[int]([1, Marked.PAUSE(for_s=3), Marked.PAUSE(for_s=0.7), 2], parts=2))
    mp.collect(stream.inspect("at", lambda item: times.append((item, clock.monotonic_s()))), clock=clock)
    (first, at_s), (second, later_s) = times
    assert (first, second) == (1, 2)
    assert later_s - at_s == pytest.approx(3.7, abs=0.01)


def test_marks_go_to_all_parts_and_are_not_counted() -> None:
    eof = Marked.EOF()
    source = Marked[int]([1, 2, 3, eof, 4, Marked.ABORT(), 5], parts=2)
    assert repr(source) == "Memory(5 items in 2 partitions)"
    parts = [source.build_part(Part(name), None) for name in source.list_parts()]
    assert [part.poll(9) for part in parts] == [[1, 3], [2]]
    assert [(part.poll(9), part.is_finished(), part.snapshot()) for part in parts] == [
        ([], True, {"items": 3, "runs": 1}),
        ([], True, {"items": 2, "runs": 1}),
    ]


@pytest.mark.parametrize("seed", range(15))
def test_runs_of_the_simulator_end_at_the_marks(seed: int) -> None:
    """A crash after some parts are at a mark does not read beyond it."""
    first, second, third = list(range(1, 20)), list(range(100, 120)), list(range(1000, 1030))
    items = [*first, Marked.EOF(), *second, Marked.PAUSE(for_s=1), *second, Marked.ABORT(), Marked.EOF(), *third]
    lasts: list[int] = []
    store, incarnations = MemoryStore(), 0
    while len(lasts) < 3:
        job, out = sums(items, parts=3)
        snapshots = mp.Snapshots(store, interval_s=0.01)
        try:
            crashes = 1 + len(lasts) % 2
            result = mp.Simulation(2, seed=seed + len(lasts), crashes=crashes, snapshots=snapshots).run(job)
        except SourceError:
            lasts += [] if lasts else [-1]
            continue
        lasts.append(max(out.items))
        incarnations += result.incarnations
    assert lasts == [sum(first), sum(first) + 2 * sum(second), sum(first) + 2 * sum(second) + sum(third)]
    assert incarnations > 3


def test_what_breaks_a_run_once_is_not_sent_to_other_processes() -> None:
    job, _ = sums([1, Marked.ABORT()])
    with pytest.raises(PlanError, match=r"step 'in'.*sources\.Memory\.ABORT breaks a job once.*end one of them"):
        pack_plan(job.plan())
    pack_plan(sums([1, Marked.EOF(), Marked.PAUSE(for_s=1)])[0].plan())


@pytest.mark.parametrize("mark", [Marked.EOF, Marked.ABORT, Marked.PAUSE])
def test_a_mark_without_parentheses_is_refused(mark: Any) -> None:
    with pytest.raises(PlanError, match=rf"sources\.Memory\.{mark.__name__}\("):
        Marked([1, mark])
    assert repr(Marked([int, str])) == "Memory(2 items)"


@pytest.mark.parametrize("for_s", [-1, "2", None, float("inf")])
def test_a_pause_is_a_number_of_seconds(for_s: Any) -> None:
    with pytest.raises(PlanError, match=r"sources\.Memory\.PAUSE: for_s"):
        Marked.PAUSE(for_s=for_s)


def test_a_run_continues_where_one_with_other_marks_stopped() -> None:
    store = MemoryStore()
    assert run([1, 2], store) == [1, 3]
    assert run([1, 2, sources.Memory.EOF(), 3], store) == []
    assert run([1, 2, sources.Memory.EOF(), 3], store) == [6]
    store = MemoryStore()
    assert run([1, 2, sources.Memory.EOF(), 3], store) == [1, 3]
    assert run([1, 2, 3], store) == []


def test_a_subclass_keeps_its_class_and_takes_no_marks() -> None:
    class Own(sources.Memory[int]):
        pass

    assert isinstance(Own([1, 2]), Own)
    with pytest.raises(PlanError, match=r"Own: marks are for sources\.Memory itself, not for its subclasses"):
        Own([1, sources.Memory.EOF()])
