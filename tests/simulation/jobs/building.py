"""From a layout to a job, through the public builders only (and watches, which are custom steps)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import malstrom_py as mp
from malstrom_py import partitioners
from tests.simulation.jobs.counting import KINDS, LEDGERS
from tests.simulation.jobs.inputs import Input
from tests.simulation.jobs.layouts import End, Head, Layout, Stage, Tail, Way
from tests.simulation.jobs.records import KEYS, Mark, Passed, Record, buried, info_of, is_odd, is_sifted, is_unreadable
from tests.simulation.jobs.seen import Seen
from tests.simulation.jobs.tails import TAILS, outer_key
from tests.simulation.jobs.watching import watched

Stream = Any


class Unreadable(Exception):
    """What the mending step of a source raises."""


def build(name: str, layout: Layout, inputs: Mapping[str, Input], seen: Seen, *, slots: int) -> mp.Job:
    """A job of ``layout`` that reads ``inputs``, and of which ``seen`` notes what is to be seen."""
    return _Builder(mp.Job(name, slots), layout, inputs, seen).job


def mended(record: Record) -> Record:
    """What a mending step does."""
    if is_unreadable(record):
        raise Unreadable("a record that this step cannot read")
    return record


def from_row(row: dict[str, Any]) -> Passed:
    """A record that has been columns."""
    return Passed(Record(**{name: row[name] for name in Record._fields}))


class _Builder:
    def __init__(self, job: mp.Job, layout: Layout, inputs: Mapping[str, Input], seen: Seen) -> None:
        self.job = job
        self.layout = layout
        self.inputs = inputs
        self.seen = seen
        self.streams: dict[Way, Stream] = {}
        self.columns: dict[str, Stream] = {}
        self.own_slots = partial(own_slot, slots=job.slots)
        for kind in (Record, Mark, Passed):
            job.register_type(kind)
        for head in layout.heads:
            self.head(head)
        for stage in layout.stages:
            self.stage(stage)
        for tail in layout.tails:
            self.tail(tail)
        for end in layout.ends:
            self.end(end)

    def head(self, head: Head) -> None:
        """Sources, up to their epochs."""
        name = head.name
        first, *others = [self.job.source(source, self.inputs[source].source(self.seen)) for source in head.sources]
        stream: Stream = first.union(f"{name}-joined", *others) if others else first
        if head.columns:
            stream = with_columns(stream, head)
        elif head.mends:
            stream = stream.map(f"{name}-mend", mended, on_error="dead-letter")
            letters = self.job.dead_letters(f"{name}-mend")
            self.streams[Way(name, "letters")] = letters.map(
                f"{name}-letter", lambda letter: buried(Passed(letter.value), name)
            )
        if head.sifts and not head.columns:
            stream = stream.filter(f"{name}-sift", lambda record: not is_sifted(record))
        if head.timing is not None:
            stream, late = self.timed(stream, head)
            self.streams[Way(name, "late")] = late.map(f"{name}-late-begin", from_row if head.columns else Passed)
            stream = watched(stream, f"{name}-on-time", self.seen, at_source=True)
        if head.columns:
            self.columns[name] = stream
        self.streams[Way(name)] = stream.map(f"{name}-begin", from_row if head.columns else Passed)

    def timed(self, stream: Stream, head: Head) -> tuple[Stream, Stream]:
        """The records that are on time, and those that are not."""
        timing = head.timing
        assert timing is not None
        moment = "time" if head.columns else lambda record: record.time
        on_time, late = stream.assign_timestamps(f"{head.name}-time", moment, unit=timing.unit).generate_epochs(
            f"{head.name}-epochs",
            mp.limit_out_of_orderness(timing.bound),
            idle_after=None if timing.idle_s is None else timedelta(seconds=timing.idle_s),
            max_ahead=timedelta(days=10) if timing.ahead else None,
        )
        return on_time, late

    def way(self, way: Way) -> Stream:
        """The stream of a way; a branch is made when it is first asked for."""
        if way not in self.streams:
            feeder = self.streams[Way(way.feeder)]
            yes, no = feeder.branch(f"{way.feeder}-branch", lambda passed: is_odd(passed.record))
            self.streams[Way(way.feeder, "yes")], self.streams[Way(way.feeder, "no")] = yes, no
        return self.streams[way]

    def keyed(self, ways: tuple[Way, ...], name: str, key: str, partitioner: str, *, apart: bool) -> Stream:
        """The ways as one stream, keyed by ``key``."""
        (way, *more), slots = ways, self.partitioner(partitioner)
        if not more and way.lane == "all" and way.feeder in self.columns:
            by_column = self.columns[way.feeder].key_by(f"{name}-key", f"by_{key}", partitioner=slots)
            return by_column.map(f"{name}-rows", from_row)

        def key_of(passed: Passed) -> Any:
            return KEYS[key](passed.record)

        streams = [self.way(way) for way in ways]
        if not apart:
            first, *others = streams
            joined = first.union(f"{name}-joined", *others) if others else first
            return joined.key_by(f"{name}-key", key_of, partitioner=slots)
        first, *others = [
            stream.key_by(f"{name}-key-{number}", key_of, partitioner=slots) for number, stream in enumerate(streams)
        ]
        return first.union(f"{name}-joined", *others)

    def partitioner(self, name: str) -> Any:
        """A sink of the library, or a custom one."""
        return self.own_slots if name == "own" else getattr(partitioners, name)

    def stage(self, stage: Stage) -> None:
        """A keyed step that counts."""
        name = stage.name
        keyed = self.keyed(stage.inputs, name, stage.key, stage.partitioner, apart=stage.apart)
        keyed = watched(keyed, f"{name}-in", self.seen)
        if stage.enriched:
            keyed = keyed.enrich(f"{name}-ask", ask, combine=lambda passed, answer: passed._replace(answer=answer))
        timed = self.layout.is_timed(stage.inputs[0])
        policy = "dead-letter" if stage.poisoned else "fail"
        main, *sides = KINDS[stage.kind](keyed, stage, self.seen, timed=timed, on_error=policy)
        self.streams[Way(name)] = watched(main, f"{name}-out", self.seen)
        if stage.kind in LEDGERS:
            sides[0].sink(f"{name}-final", self.seen.sink(f"{name}-final", "committed"))
        if stage.window is not None:
            self.streams[Way(name, "windows")] = watched(sides[1], f"{name}-fired", self.seen)
        if stage.poisoned:
            letters = self.job.dead_letters(name)
            self.streams[Way(name, "letters")] = letters.map(
                f"{name}-letter", lambda letter: buried(letter.value, name)
            )

    def tail(self, tail: Tail) -> None:
        """A keyed step of another kind, with its own sinks."""
        make = TAILS[tail.kind].build
        if tail.kind == "windows":
            keyed = self.streams[tail.input].key_by(f"{tail.name}-key", outer_key)
        elif tail.kind == "arrays":
            keyed = self.columns[tail.input.feeder]  # it keys them itself
        else:
            keyed = self.keyed((tail.input,), tail.name, tail.key, "stable_hash", apart=False)
        for name, stream in make(keyed, tail, self.seen).items():
            stream.sink(name, self.seen.sink(name, "committed"))

    def end(self, end: End) -> None:
        """A sink."""
        first, *others = [self.way(way) for way in end.inputs]
        stream = first.union(f"{end.name}-joined", *others) if others else first
        stream.sink(end.name, self.seen.sink(end.name, end.sink))


async def ask(key: Any) -> int:
    """What an enriching step asks. It takes a while, so that a barrier can arrive during it."""
    await asyncio.sleep(0.002)
    return info_of(key)


def own_slot(key: int, *, slots: int) -> int:
    """A custom partitioner: half of the keys in the first slot."""
    return key * 7 % slots if key % 2 else 0


def with_columns(stream: Stream, head: Head) -> Stream:
    """Records as columns, with the columns that stages key by, through the steps that take columns."""
    import polars as pl

    name = head.name
    if head.sifts:
        stream = stream.filter(f"{name}-sift", pl.col("number") % 5 != 4)
    stream = stream.with_columns(f"{name}-with", by_key=pl.col("key")).map_batches(f"{name}-batches", with_number)
    return stream.select(f"{name}-select", *Record._fields, "by_key", "by_number")


def with_number(batch: Any) -> Any:
    """The key called "number" as a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number, three = batch["number"], pa.scalar(3, pa.int64())
    thirds = pc.call_function("multiply", [pc.call_function("divide", [number, three]), three])
    return batch.append_column("by_number", pc.call_function("subtract", [number, thirds]))
