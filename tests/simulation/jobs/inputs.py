"""What jobs read: parts with their records in order, with silences among them, as rows, as columns, or from memory."""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from malstrom_py import sources
from malstrom_py.sources.base import Part
from tests.simulation.jobs.records import FUTURE, Record, made
from tests.simulation.jobs.seen import Seen

Entry = Record | int
"""A record, or a number of polls that bring nothing."""

KEY_FAMILIES: Final[tuple[tuple[Any, ...], ...]] = (
    ("a", "b", "c", "d", "e", "f"),
    tuple(range(9)),
    (1, 1.0, True, "1", None, 2.5, (1, "x"), b"1"),
    ((1, "a"), (2, "a"), (1, "b")),
    ("only",),
)
"""Keys of which records have some; of the third family some are equal."""


@dataclass(frozen=True)
class Growth:
    """How the parts of a source appear.

    ``at``: part -> the number of the listing that has it first; the others are there at the start. ``before``: part ->
    the number of rows before the position at which it begins when it is new, which must not be read. ``gone``: parts
    that are listed no more once any of what they have is acknowledged.
    """

    every_s: float
    at: Mapping[str, int]
    before: Mapping[str, int]
    gone: frozenset[str]


@dataclass(frozen=True)
class Input:
    """One source: its parts by name, each a list of entries.

    ``kind`` is "script", "memory" or "columns". An empty poll takes ``silence_s`` of the clock. ``chunk``: the most
    rows that a poll brings; ``open_max``: how many parts of it a worker reads at a time. ``growth``: how parts appear
    while the job runs.
    """

    name: str
    kind: str
    parts: Mapping[str, tuple[Entry, ...]]
    silence_s: float = 0.0
    chunk: int | None = None
    open_max: int | None = None
    growth: Growth | None = None

    def records(self, part: str) -> list[Record]:
        """The records of a part, in order."""
        return [entry for entry in self.parts[part] if isinstance(entry, Record)]

    @property
    def appearing(self) -> Collection[str]:
        """The parts that appear while the job runs."""
        return () if self.growth is None else self.growth.at

    def all_records(self) -> list[Record]:
        """Those of all parts."""
        return [record for part in self.parts for record in self.records(part)]

    def source(self, seen: Seen) -> Any:
        """The source that a job reads."""
        if self.growth is not None and not seen.slow_polls:  # else nothing would end the job
            return Growing(self, seen, self.growth)
        if self.kind != "memory":
            return Scripted(self, seen)
        parts = [self.records(part) for part in self.parts]
        total = sum(map(len, parts))
        dealt = [parts[at % len(parts)][at // len(parts)] for at in range(total)]
        return Dealt(dealt, len(parts), seen)


class Dealt(sources.Memory[Record]):
    """The library's source of what is in memory; it notes where its parts are opened."""

    def __init__(self, items: list[Record], parts: int, seen: Seen) -> None:
        super().__init__(items, parts)
        self._seen = seen

    def build_part(self, part: Part, state: Any) -> Any:
        self._seen.part_opened(state)
        return super().build_part(part, state)


class Scripted:
    """A source that reads an `Input` of kind "script" or "columns"."""

    def __init__(self, given: Input, seen: Seen) -> None:
        self.given = given
        self.seen = seen
        if given.open_max is not None:
            self.parts_open_max = given.open_max

    def list_parts(self) -> Sequence[Part]:
        return [Part(name) for name in self.given.parts]

    def build_part(self, part: Part, state: Any) -> ScriptedPart:
        if (self.given.name, part) in self.seen.open_parts:
            self.seen.broken.append(f"part {part} of source {self.given.name} is read twice at the same time")
        return ScriptedPart(self.given, part, state, self.seen)


class Growing(Scripted):
    """A source whose parts appear while it is listed, and whose system forgets what was acknowledged."""

    def __init__(self, given: Input, seen: Seen, growth: Growth) -> None:
        super().__init__(given, seen)
        self.growth = growth
        self.lists_again_every_s = growth.every_s

    def list_parts(self) -> Sequence[Part]:
        listing = self.seen.listings[self.given.name]
        self.seen.listings[self.given.name] += 1
        return [
            Part(name)
            for name in self.given.parts
            if self.growth.at.get(name, 0) <= listing and not self._is_gone(name)
        ]

    def new_part_position(self, part: Part) -> list[int]:
        return [self.growth.before.get(part, 0), 0]

    def build_part(self, part: Part, state: Any) -> ScriptedPart:
        at, released = (state[0] if state else 0), self.seen.released.get((self.given.name, part), 0)
        if at < released:
            self.seen.broken.append(f"part {part} of {self.given.name} is read from {at}: {released} were acknowledged")
        built = super().build_part(part, state)
        built.put_before(self.growth.before.get(part, 0))
        return built

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        for part, position in positions.items():
            self.seen.released[self.given.name, part] = position[0]

    def _is_gone(self, part: str) -> bool:
        return part in self.growth.gone and (self.given.name, part) in self.seen.released


class ScriptedPart:
    def __init__(self, given: Input, part: str, state: Any, seen: Seen) -> None:
        self._given = given
        self._part = part
        self._seen = seen
        self._entries = given.parts[part]
        self._at: int = state[0] if state else 0
        self._silent: int = state[1] if state else 0
        seen.open_parts[given.name, part] = self
        seen.part_opened(state)

    def put_before(self, rows: int) -> None:
        """Have so many rows before the others."""
        at = range(-rows, 0)
        self._entries = (*(made(self._given.name, self._part, number, None, 0) for number in at), *self._entries)

    def poll(self, rows_max: int) -> Any:
        rows: list[Record] = []
        most = min(rows_max, self._given.chunk or rows_max)
        while not self._silent and self._at < len(self._entries) and len(rows) < most:
            entry = self._entries[self._at]
            if isinstance(entry, Record):
                rows.append(entry)
            elif rows:
                break
            else:
                self._silent = entry
            self._at += 1
        if self._silent:
            self._silent -= 1
            if self._seen.slow_polls:
                self._seen.clock.advance(self._given.silence_s)
        self._seen.works(len(rows))
        if not rows:
            return None
        return _columns(rows) if self._given.kind == "columns" else rows

    def is_finished(self) -> bool:
        return self._at == len(self._entries) and not self._silent

    def snapshot(self) -> list[int]:
        return [self._at, self._silent]

    def close(self) -> None:
        if self._seen.open_parts.get((self._given.name, self._part)) is self:
            del self._seen.open_parts[self._given.name, self._part]


def _columns(rows: Sequence[Record]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({name: [row[at] for row in rows] for at, name in enumerate(Record._fields)})


def draw_input(rng: random.Random, name: str, *, kind: str, rows_max: int, silent: bool, ahead: bool) -> Input:
    """A source with up to ``rows_max`` records."""
    few = [1, 1, 2, 2, 3, 4] if kind == "memory" else [0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5]
    names = [str(number) for number in range(rng.choice(few))]
    rows = rng.randint(rows_max // 2, rows_max)
    if kind == "memory":
        sizes = {part: len(range(number, rows, len(names))) for number, part in enumerate(names)}
    else:
        sizes = _dealt(rng, names, rows)
    family = rng.choice(KEY_FAMILIES[:2] if kind == "columns" else KEY_FAMILIES)
    keys = rng.sample(family, rng.randint(1, len(family)))
    silent = silent and kind != "memory"
    # Not of `rng`, so that a seed draws all else as if no input were skewed.
    heavy = keys[:1] if zlib.crc32(repr((name, rows, keys)).encode()) % 2 else []
    parts = {part: _entries(rng, name, part, size, keys, heavy, silent, ahead) for part, size in sizes.items()}
    return Input(
        name,
        kind,
        parts,
        silence_s=rng.choice([0.0, 0.05, 0.5]) if silent else 0.0,
        chunk=rng.choice([None, None, 1, 3]),
        open_max=rng.choice([None, None, None, 1, 2]),
    )


def grown(rng: random.Random, given: Input) -> Input:
    """The same source, but some of its parts appear while the job runs."""
    names, listing = list(given.parts), 0
    at: dict[str, int] = {}
    for name in rng.sample(names, rng.randint(1, len(names))):
        listing += rng.choice([0, 1, 1, 2])  # two listings in vain end the job
        at[name] = max(1, listing)
    before = {name: rng.choice([0, 1, 2]) for name in at}
    gone = frozenset(name for name in names if rng.random() < 0.5)
    return replace(given, growth=Growth(rng.choice([0.001, 0.02]), at, before, gone))


def _dealt(rng: random.Random, names: Sequence[str], rows: int) -> dict[str, int]:
    """``rows`` over parts, unevenly; some have none."""
    sizes = dict.fromkeys(names, 0)
    busy = rng.sample(names, rng.randint(1, len(names))) if names else []
    for _ in range(rows if busy else 0):
        sizes[rng.choice(busy)] += 1
    return sizes


def _entries(
    rng: random.Random,
    source: str,
    part: str,
    size: int,
    keys: Sequence[Any],
    heavy: Sequence[Any],
    silent: bool,
    ahead: bool,
) -> tuple[Entry, ...]:
    """Times go up by and large; some records are late, some far in the future, some follow a silence. A ``heavy``
    key has most of the records.
    """
    entries: list[Entry] = []
    time, pace, jitter = rng.choice([-20, 0, 0, 7]), rng.choice([1, 1, 3]), rng.choice([0, 2, 5, 12])
    pauses = rng.choice([0.0, 0.1, 0.3]) if silent else 0.0
    for number in range(size):
        if rng.random() < pauses:
            entries.append(rng.choice([1, 2, 5, 9]))
        time += rng.randint(0, 2 * pace)
        at = FUTURE + number if ahead and rng.random() < 0.05 else time - rng.randint(0, jitter)
        key = rng.choice(keys)
        entries.append(made(source, part, number, heavy[0] if heavy and number % 4 else key, at))
    if rng.random() < pauses:
        entries.append(rng.choice([1, 3, 6]))
    return tuple(entries)
