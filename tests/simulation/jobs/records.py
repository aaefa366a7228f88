"""The records of the jobs: they verify themselves, and each step adds a mark."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Record(NamedTuple):
    """A record: where it was read, its number there, its key, its event time, and a checksum of all that."""

    source: str
    part: str
    number: int
    key: Any
    time: int
    check: int


class Mark(NamedTuple):
    """What a stage notes on a record: the ``n``-th of its key there, ``of_source``-th among those of its source.

    ``digest`` depends on all records of the key up to this one, in their order; ``answer``: the answer of an enriching
    step.
    """

    stage: str
    n: int
    digest: int
    of_source: int
    answer: int | None


class Passed(NamedTuple):
    """A record with the marks of the stages that it has passed."""

    record: Record
    trail: tuple[Mark, ...] = ()
    answer: int | None = None


class Fired(NamedTuple):
    """What a window gives: its stage, key, start, and who was in it."""

    stage: str
    key: Any
    start: int
    content: tuple[Any, ...]


Ident = tuple[str, str, int, tuple[str, ...]]
"""Who a record is at a stage: source, part, number, and the stages that it has passed."""

Tally = tuple[int, int, tuple[tuple[str, int], ...]]
"""The state of a key at a stage: records, digest, records by source."""

NOTHING: Final[Tally] = (0, 0, ())

FUTURE: Final = 10**15
"""A time in the far future, in every unit (T4)."""


def checksum(source: str, part: str, number: int, key: Any, time: int) -> int:
    """Of a record, by the very types of what is in it."""
    return zlib.crc32(repr((source, part, number, key, time)).encode())


def made(source: str, part: str, number: int, key: Any, time: int) -> Record:
    """A record that is intact."""
    return Record(source, part, number, key, time, checksum(source, part, number, key, time))


def is_intact(record: Any) -> bool:
    """Whether a record is what it was when it was made."""
    return type(record) is Record and record.check == checksum(*record[:5])


def ident(passed: Passed) -> Ident:
    """Who it is."""
    record = passed.record
    return (record.source, record.part, record.number, tuple(mark.stage for mark in passed.trail))


def chained(digest: int, who: Ident) -> int:
    """Return the digest after one more record."""
    return zlib.crc32(repr(who).encode(), digest)


def counted(tally: Tally, stage: str, passed: Passed) -> tuple[Tally, Passed]:
    """One more record of a key: the tally after it, and the record with its mark."""
    n, digest, sources = tally
    digest = chained(digest, ident(passed))
    by_source = dict(sources)
    by_source[passed.record.source] = by_source.get(passed.record.source, 0) + 1
    mark = Mark(stage, n + 1, digest, by_source[passed.record.source], passed.answer)
    after = (n + 1, digest, tuple(sorted(by_source.items())))
    return after, Passed(passed.record, (*passed.trail, mark))


def buried(passed: Passed, station: str) -> Passed:
    """A record that ``station`` has refused, with that on its trail."""
    return Passed(passed.record, (*passed.trail, Mark(f"{station}!", 0, 0, 0, None)))


def info_of(key: Any) -> int:
    """Return the answer of an enriching step for a key; equal for equal keys."""
    return zlib.crc32(repr(float(key) if isinstance(key, int | float) else key).encode())


KEYS: Final[dict[str, Callable[[Record], Any]]] = {
    "key": lambda record: record.key,
    "number": lambda record: record.number % 3,
    "part": lambda record: record.part,
    "pair": lambda record: (record.source, record.number % 2),
    "time": lambda record: record.time // 8,
    "one": lambda record: "all",
}
"""How a stage keys records, by name."""

WHOLE_KEYS: Final = ("number", "time")
"""Those that give whole numbers, which partitioners of slots by number take."""

COLUMN_KEYS: Final = ("key", "number")
"""Those that a record's columns have."""


def is_odd(record: Record) -> bool:
    """What a branch asks."""
    return record.number % 2 == 1


def is_unreadable(record: Record) -> bool:
    """Whether the mending step of a source refuses it."""
    return record.check % 5 == 0


def is_poison(record: Record) -> bool:
    """Whether a keyed step that may fail does so."""
    return record.check % 7 == 0


def is_sifted(record: Record) -> bool:
    """Whether a source's filter leaves it out."""
    return record.number % 5 == 4
