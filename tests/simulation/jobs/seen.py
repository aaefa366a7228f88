"""What a run has shown: the rows in its sinks, in the order in which they were written, and what its watches saw.

The sinks are of each kind. Rule: they note, and judge nothing but what only they can know: who writes where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerInfo


class Row(NamedTuple):
    """A row in a sink. ``place``: the part of a partitioned sink; ``timed`` is False where its time is not known."""

    key: Any
    value: Any
    time: int | None
    place: str = ""
    timed: bool = True


@dataclass
class Outcome:
    """What the oracle is shown. ``frontiers``: (step, worker) -> the frontiers there.

    ``left``: the workers that were gone before the end; ``rescaled``: whether any came or went. ``broken``: what was
    seen to be wrong when it happened; ``broken_at_sources``: what is, unless parts have moved. ``took_s``: by
    its clock.
    """

    rows: dict[str, list[Row]]
    frontiers: dict[tuple[str, int], list[int]]
    broken: list[str]
    broken_at_sources: list[str]
    hits: Counter[str]
    left: frozenset[int]
    rescaled: bool
    took_s: float = 0.0


@dataclass
class Seen:
    """The record of a running job; it is reset when the job restarts, except for the content of snapshots.

    ``kept``: whether the job has snapshots; then no sink shows more than once what it was given twice.
    """

    frontiers: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    broken_at_sources: list[str] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    written: dict[str, list[tuple[int, Row]]] = field(default_factory=dict)
    memories: dict[str, sinks.Memory] = field(default_factory=dict)
    open_parts: dict[tuple[str, str], object] = field(default_factory=dict)
    opened: dict[tuple[str, str], int] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    has_read: bool = False
    has_joiners: bool = False
    incarnation: int = 0
    is_fresh: bool = True
    clock: Any = None
    slow_polls: bool = False
    slow_s: float = 0.0
    kept: bool = False
    listings: Counter[str] = field(default_factory=Counter)
    """How often each source was listed since the job began."""
    released: dict[tuple[str, str], int] = field(default_factory=dict)
    """(source, part) -> the position before which its system has nothing more, because it was acknowledged."""

    def __post_init__(self) -> None:
        self.order = count()

    def restarted(self, *, afresh: bool) -> None:
        """The job starts: the record of an earlier start is dropped, unless the job resumes from a snapshot."""
        if afresh:
            self.listings.clear()
        if not self.is_fresh:
            self.frontiers, self.open_parts, self.broken_at_sources = {}, {}, []
            if afresh:
                self.written = {name: [] for name in self.written}
            self.left, self.has_read, self.has_joiners = set(), False, False
            self.incarnation += 1
            self.is_fresh = True

    def part_opened(self, state: Any) -> None:
        """A part of a source is read, from its beginning or from where ``state`` says."""
        self.has_read = True
        self.hits["part opened at its position"] += state is not None

    def rows_of(self, batch: Batch, place: str = "") -> list[tuple[int, Row]]:
        """The rows of ``batch``, numbered as they come."""
        self.works(len(batch))
        blank: list[None] = [None] * len(batch)
        rows = zip(batch.keys or blank, batch.values, batch.timestamps or blank, strict=True)
        return [(next(self.order), Row(key, value, time, place)) for key, value, time in rows]

    def hit(self, case: str) -> None:
        """A hard case was met."""
        self.hits[case] += 1

    def works(self, rows: int) -> None:
        """So many rows are read or written, which takes the time of this run."""
        if self.slow_s:
            self.clock.advance(rows * self.slow_s)

    def outcome(self) -> Outcome:
        """Return the record to be judged."""
        rows = {
            name: [row for _, row in sorted(taken, key=lambda pair: pair[0]) if self._stands(name, row)]
            for name, taken in self.written.items()
        }
        for name, memory in self.memories.items():
            by_key = memory.by_key.items()
            rows[name] = [Row(key, value, None, timed=False) for key, values in by_key for value in values]
            if Counter(map(repr, memory.items)) != Counter(repr(row.value) for row in rows[name]):
                self.broken.append(f"sink {name}: items and by_key have different rows")
        broken, at_sources = list(self.broken), list(self.broken_at_sources)
        left, rescaled = frozenset(self.left), bool(self.left) or self.has_joiners
        took_s = 0.0 if self.clock is None else self.clock.monotonic_s()
        return Outcome(rows, self.frontiers, broken, at_sources, Counter(self.hits), left, rescaled, took_s)

    def _stands(self, sink: str, row: Row) -> bool:
        """Return whether the current run has read past a row of a part."""
        opened = self.opened.get((sink, row.place), self.incarnation)
        return self.is_fresh or opened == self.incarnation

    def sink(self, name: str, kind: str) -> Any:
        """A sink of ``kind`` that is looked at under ``name``."""
        if kind == "written" and self.kept:
            kind = "committed"  # output that cannot be withdrawn is there twice after a crash
        if kind == "memory":
            return self.memories.setdefault(name, sinks.Memory())
        self.written.setdefault(name, [])
        return {"committed": Committed, "written": Written, "parts": Parts}[kind](self, name)


class Committed:
    """A transactional sink: a row counts when it was committed, in the order in which it was written."""

    def __init__(self, seen: Seen, name: str) -> None:
        self.seen = seen
        self.name = name
        self.staged: dict[bytes, tuple[SnapshotId, list[tuple[int, Row]]]] = {}
        self.committed: set[SnapshotId] = set()
        self.is_over = False

    def open(self, worker: WorkerInfo) -> CommittedWriter:
        self.seen.is_fresh = False
        self.seen.has_joiners |= self.seen.has_read
        return CommittedWriter(self, worker.worker)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.is_over = context.final
        if context.snapshot in self.committed:
            return
        if any(other > context.snapshot for other in self.committed):
            self.seen.broken.append(f"sink {self.name}: {context.snapshot} is committed after a later one")
        self.committed.add(context.snapshot)
        for payload in payloads:
            snapshot, rows = self.staged.pop(payload, ("", []))
            if snapshot != context.snapshot:
                self.seen.broken.append(f"sink {self.name}: what is committed was not written for {context.snapshot}")
            self.seen.written.setdefault(self.name, []).extend(rows)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.staged.pop(payload, None)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self.seen.restarted(afresh=not committed)
        self.is_over = False
        for payload, (snapshot, _) in list(self.staged.items()):
            if snapshot not in committed:
                del self.staged[payload]
        if not committed:
            self.committed.clear()


class CommittedWriter:
    def __init__(self, sink: Committed, worker: int) -> None:
        self._sink = sink
        self._worker = worker
        self._incarnation = sink.seen.incarnation
        self._rows: list[tuple[int, Row]] = []

    def write(self, batch: Batch) -> None:
        self._rows += self._sink.seen.rows_of(batch)

    def pre_commit(self, context: CommitContext) -> bytes:
        payload = f"{self._incarnation}/{next(self._sink.seen.order)}".encode()
        if self._incarnation == self._sink.seen.incarnation:
            self._sink.staged[payload] = (context.snapshot, self._rows)
        self._rows = []
        return payload

    def close(self) -> None:
        if not self._sink.is_over and self._incarnation == self._sink.seen.incarnation:
            self._sink.seen.left.add(self._worker)
        self._rows = []


class Written:
    """A stateless sink: a row counts when it is written."""

    def __init__(self, seen: Seen, name: str) -> None:
        self.seen = seen
        self.name = name

    def build(self, worker: WorkerInfo) -> WrittenWriter:
        return WrittenWriter(self)


class WrittenWriter:
    def __init__(self, sink: Written) -> None:
        self._sink = sink
        self._incarnation = sink.seen.incarnation

    def write(self, batch: Batch) -> None:
        seen = self._sink.seen
        if self._incarnation == seen.incarnation:  # nothing keeps a zombie from such a sink
            seen.is_fresh = False
            seen.written.setdefault(self._sink.name, []).extend(seen.rows_of(batch))

    def close(self) -> None:
        """Nothing is open."""


class Parts:
    """A partitioned sink: parts by the number of a record, each written in one place at a time, from its position."""

    def __init__(self, seen: Seen, name: str) -> None:
        self.seen = seen
        self.name = name

    def assign_part(self, message: mp.DataMessage[Any, Any]) -> str:
        return f"part-{message.value.record.number % 4}"

    def build_part(self, part: str, state: Any) -> PartWriter:
        seen, at = self.seen, (self.name, part)
        if seen.opened.get(at, seen.incarnation) != seen.incarnation:
            self._cut(part, state or 0)
        seen.opened[at] = seen.incarnation
        written = [row for _, row in self.seen.written.setdefault(self.name, []) if row.place == part]
        if len(written) != (state or 0):
            self.seen.broken.append(
                f"part {part} of sink {self.name} has {len(written)} rows, and is opened at {state}"
            )
        if (self.name, part) in self.seen.open_parts:
            self.seen.broken.append(f"part {part} of sink {self.name} is open twice")
        self.seen.hits["part of a sink"] += 1
        self.seen.hits["part of a sink moved"] += state is not None
        return PartWriter(self, part, state or 0)

    def _cut(self, part: str, position: int) -> None:
        """Withdraw the output of a dead run after ``position``."""
        rows = self.seen.written[self.name]
        mine = [(number, row) for number, row in rows if row.place == part]
        self.seen.written[self.name] = [pair for pair in rows if pair not in mine[position:]]


class PartWriter:
    def __init__(self, sink: Parts, part: str, position: int) -> None:
        self._sink = sink
        self._part = part
        self._position = position
        self._incarnation = sink.seen.incarnation
        sink.seen.open_parts[sink.name, part] = self

    def write(self, batch: Batch) -> None:
        seen = self._sink.seen
        if self._incarnation == seen.incarnation:
            seen.is_fresh = False
            self._position += len(batch)
            seen.written.setdefault(self._sink.name, []).extend(seen.rows_of(batch, self._part))

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        if self._sink.seen.open_parts.get((self._sink.name, self._part)) is self:
            del self._sink.seen.open_parts[self._sink.name, self._part]
