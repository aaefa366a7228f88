"""Steps that hold more than a state by key, while workers come and go: writers of parts, calls, schedules, unions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.testing import VirtualClock
from tests.unit.part_sink import PartSink
from tests.unit.polled import Polled
from tests.unit.workers.harness import Running, rows


@pytest.mark.parametrize("sizes", [(2,), (3, 1), (2, 4, 1)], ids=str)
def test_r4_writers_of_parts_move_with_their_positions_and_are_never_open_twice(sizes: tuple[int, ...]) -> None:
    job, parts = mp.Job("parts", slots=16), PartSink(lambda message: f"part-{message.value[1] % 6}")
    job.source("in", sources.Memory(rows(3, 150), parts=3)).sink("out", parts)
    running = Running(job, slots_per_move=4).through(sizes, between=12)
    assert not running.crew.finished
    running.finish()
    assert sorted(row for of_part in parts.rows.values() for _, row in of_part) == sorted(rows(3, 150))
    assert set(parts.open.values()) == {0}
    assert Counter(what for what, _, _ in parts.log)["open"] > 6, "at least one has moved"
    for of_part in parts.rows.values():
        for part in range(3):
            numbers = [number for _, (of, number) in of_part if of == part]
            assert numbers == sorted(numbers)


async def looked_up(row: tuple[int, int]) -> int:
    """Comes back out of order: the smaller the number, the later."""
    for _ in range(5 - row[1] % 5):
        await asyncio.sleep(0)
    return row[1]


@pytest.mark.parametrize("sizes", [(2, 1), (3, 2)], ids=str)
def test_r4_records_that_await_an_answer_leave_before_the_state_behind_them_moves(sizes: tuple[int, ...]) -> None:
    """A count after enrich: a record released after the state of its key has moved would be counted from 0 again."""
    job, out = mp.Job("calls", slots=16), sinks.Memory()
    keyed = job.source("in", sources.Memory(rows(2, 150), parts=2)).key_by("key", lambda row: row[1] % 9)
    asked = keyed.enrich("asked", looked_up, by=lambda row: row, concurrency=4)
    asked.stateful_map("seen", lambda key, pair, seen: ((*pair[0], seen), seen + 1), default=int).sink("out", out)
    running = Running(job, slots_per_move=4, rows_max=4).through(sizes, between=6)
    running.finish()
    assert sorted(item[:2] for item in out.items) == sorted(rows(2, 150))
    for key, items in out.by_key.items():
        assert [seen for _, _, seen in items] == list(range(len(items)))
        for part in (0, 1):
            assert [number for of, number, _ in items if of == part] == list(range(key, 150, 9))


@dataclass(frozen=True)
class Modulo:
    """Equal to any other of the same divisor, and not the same."""

    divisor: int

    def __call__(self, key: int) -> int:
        return key % self.divisor


@pytest.mark.parametrize("sizes", [(2, 1), (3, 2)], ids=str)
def test_r4_a_union_of_equally_keyed_streams_moves_as_one(sizes: tuple[int, ...]) -> None:
    """One branch holds its records back, and the state after the union gets those as well before it leaves."""
    job, out = mp.Job("union", slots=16), sinks.Memory()
    first, second = (job.source(name, sources.Memory(rows(2, 80), parts=2)) for name in ("first", "second"))
    by_first = first.key_by("key-first", lambda row: row[1] % 9, partitioner=Modulo(16)).map("plain", lambda row: row)
    by_second = second.key_by("key-second", lambda row: row[1] % 9, partitioner=Modulo(16))
    answered = by_second.enrich("asked", looked_up, by=lambda row: row, combine=lambda row, answer: row, concurrency=3)
    joined = by_first.union("both", answered)
    joined.stateful_map("seen", lambda key, row, seen: ((*row, seen), seen + 1), default=int).sink("out", out)
    running = Running(job, slots_per_move=4, rows_max=4).through(sizes, between=6)
    running.finish()
    assert Counter(item[:2] for item in out.items) == Counter([*rows(2, 80), *rows(2, 80)])
    for items in out.by_key.values():
        assert [seen for _, _, seen in items] == list(range(len(items)))


@pytest.mark.parametrize("checks", [False, True])
def test_r6_what_is_sent_on_a_schedule_keeps_its_order_through_moves(checks: bool) -> None:
    """Lists by time, after which each record is put in order again: none is lost, none overtakes."""
    clock, out = VirtualClock(), sinks.Memory()
    job = mp.Job("schedule", slots=16)
    a_row_per_second = Polled(
        lambda part, at, rows_max: [(int(part), at)] if at <= clock.monotonic_s() and at < 120 else None,
        parts=("0", "1", "2"),
        ended=lambda part, at: at >= 120,
    )
    keyed = job.source("in", a_row_per_second).key_by("key", lambda row: row[1] % 7)
    lists = keyed.collect("lists", every=timedelta(seconds=9))
    lists.key_by("again", lambda rows: rows[0][1] % 7).sink("out", out)
    batching = mp.Batching(rows_max=2, linger_s=0.5, credit=mp.Credit(rows=8))
    running = Running(job, clock=clock, batching=batching, slots_per_move=3, keys_per_parcel=1, checks=checks)
    running.through((2, 4, 1, 3), between=40)
    assert clock.monotonic_s() < 120
    running.finish()
    for key, found in out.by_key.items():
        flat = [row for rows_of in found for row in rows_of]
        for part in range(3):
            assert [number for of, number in flat if of == part] == list(range(key, 120, 7))


def test_r4_a_region_with_a_source_of_its_own_behind_an_exchange_rescales() -> None:
    """Dead letters of a keyed step and of another source come together: a region with both kinds of input."""

    def fails(row: tuple[int, int]) -> tuple[int, int]:
        if row[1] % 10 == 0:
            raise ValueError
        return row

    job, out, dead, other_out = mp.Job("mixed", slots=16), sinks.Memory(), sinks.Memory(), sinks.Memory()
    keyed = job.source("in", sources.Memory(rows(3, 100), parts=3)).key_by("key", lambda row: row[1] % 7)
    keyed.map("may-fail", fails, on_error="dead-letter").count("count").sink("out", out)
    other = job.source("other", sources.Memory(rows(2, 100), parts=2))
    other.map("may-fail-too", fails, on_error="dead-letter").sink("other-out", other_out)
    letters = job.dead_letters("may-fail").union("letters", job.dead_letters("may-fail-too"))
    letters.key_by("by-step", lambda letter: letter.step).count("letters-count").sink("dead", dead)
    running = Running(job, slots_per_move=4).through((3, 2, 4, 1), between=3)
    running.finish()
    assert {key: counts[-1] for key, counts in dead.by_key.items()} == {"may-fail": 30, "may-fail-too": 20}
    assert sorted(other_out.items) == sorted(row for row in rows(2, 100) if row[1] % 10)
    assert sum(counts[-1] for counts in out.by_key.values()) == 270


def named(name: str) -> Callable[[tuple[int, int]], tuple[str, int, int]]:
    return lambda row: (name, *row)


@pytest.mark.parametrize("sizes", [(2, 1), (3, 4, 2)], ids=str)
def test_p1_a_split_and_rejoined_stream_of_several_sources(sizes: tuple[int, ...]) -> None:
    job, out = mp.Job("diamond", slots=16), sinks.Memory()
    first, second = (job.source(name, sources.Memory(rows(3, 60), parts=3)) for name in ("first", "second"))
    marked = first.map("one", named("1")).union("all", second.map("two", named("2")))
    even, odd = marked.branch("parity", lambda row: row[2] % 2 == 0)
    joined = even.key_by("even", lambda row: row[2] % 8).union("joined", odd.key_by("odd", lambda row: row[2] % 8))
    counted = joined.stateful_map("seen", lambda key, row, seen: ((*row, seen), seen + 1), default=int)
    counted.key_by("last", lambda row: row[2] % 3).sink("out", out)
    running = Running(job, slots_per_move=4).through(sizes, between=4)
    running.finish()
    sent = [(name, *row) for name in ("1", "2") for row in rows(3, 60)]
    assert Counter(item[:3] for item in out.items) == Counter(sent)
    paths: dict[Any, list[int]] = {}
    for name, part, number, _ in out.items:
        paths.setdefault((name, part, number % 8, number % 3), []).append(number)
    assert all(numbers == sorted(numbers) for numbers in paths.values())
    for key in range(8):
        seen = sorted(item[3] for item in out.items if item[2] % 8 == key)
        assert seen == list(range(len(seen)))


def test_columns_are_held_and_moved_like_rows() -> None:
    import pyarrow as pa

    def columns(part: str, at: int, rows_max: int) -> pa.RecordBatch:
        numbers = list(range(at, min(at + rows_max, 300)))
        return pa.RecordBatch.from_pydict({"part": [int(part)] * len(numbers), "number": numbers})

    job, out = mp.Job("columns", slots=16), sinks.Memory()
    keyed = job.source("in", Polled(columns, parts=("0", "1"), ended=lambda part, at: at >= 300)).key_by(
        "key", "number"
    )
    keyed.sum("sum", by="part").sink("out", out)
    batching = mp.Batching(rows_max=3, columns_rows_max=7, credit=mp.Credit(rows=20))
    running = Running(job, batching=batching, slots_per_move=4).through((3, 1, 2), between=4)
    running.finish()
    assert {key: sums[-1] for key, sums in out.by_key.items()} == dict.fromkeys(range(300), 1)
    assert all(len(sums) == 2 for sums in out.by_key.values())
