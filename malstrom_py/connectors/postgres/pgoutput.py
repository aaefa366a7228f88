"""Decodes the messages of pgoutput, the logical decoding of PostgreSQL (version 1 of its protocol, values as text).

Pure: bytes in, events out. A `Decoder` knows the tables whose changes follow, because PostgreSQL describes each before
its first change, and again after the table was altered.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from malstrom_py.errors import SourceError

Loader = Callable[[bytes], Any]

_EPOCH: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_KEY: Final = 1


def lsn_of(text: str) -> int:
    """Return a place in the log as a number.

    >>> lsn_of("1/A")
    4294967306
    """
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return a place in the log as PostgreSQL writes it.

    >>> lsn_text(4294967306)
    '1/A'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins. ``commit``: the place of its commit, which orders transactions."""

    commit: int
    at: dt.datetime


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction is complete. ``end``: the place after it."""

    commit: int
    end: int


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row, or the TRUNCATE of a table: what users get, but for the place of its commit."""

    op: str
    schema: str
    table: str
    new: dict[str, Any] | None = None
    old: dict[str, Any] | None = None
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its name, whether it is in the replica identity, and how its text becomes a value."""

    name: str
    is_key: bool
    load: Loader


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, as PostgreSQL describes it before its changes."""

    schema: str
    table: str
    columns: tuple[Column, ...]


@dataclass(slots=True)
class _Reader:
    """Reads one message from its start to its end."""

    data: bytes
    place: int = 0

    def take(self, form: str) -> Any:
        values = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return values[0] if len(values) == 1 else values

    def text(self) -> str:
        end = self.data.index(0, self.place)
        found = self.data[self.place : end].decode()
        self.place = end + 1
        return found

    def piece(self, size: int) -> bytes:
        found = self.data[self.place : self.place + size]
        if len(found) < size:
            raise ValueError("short")
        self.place += size
        return found


@dataclass(slots=True)
class Decoder:
    """Decodes messages in their order. ``loader_of`` returns how the text of a type (an oid) becomes a value."""

    loader_of: Callable[[int], Loader]
    relations: dict[int, Relation] = field(default_factory=dict)

    def decode(self, data: bytes) -> Iterator[Begin | Commit | Change]:
        """Yield the events of one message."""
        try:
            yield from self._decode(data)
        except (struct.error, ValueError, KeyError, IndexError):
            kind = data[:1].decode("ascii", "replace")
            raise SourceError(f"PostgreSQL sent a message of pgoutput ({kind!r}) that cannot be decoded") from None

    def _decode(self, data: bytes) -> Iterator[Begin | Commit | Change]:
        kind, reader = data[:1], _Reader(data, 1)
        if kind == b"B":
            commit, at, _ = reader.take("!QqI")
            yield Begin(commit, _EPOCH + dt.timedelta(microseconds=at))
        elif kind == b"C":
            _, commit, end, _ = reader.take("!BQQq")
            yield Commit(commit, end)
        elif kind == b"R":
            self._describe(reader)
        elif kind in b"IUD":
            yield self._change(kind, reader)
        elif kind == b"T":
            count, _ = reader.take("!IB")
            for _ in range(count):
                relation = self.relations[reader.take("!I")]
                yield Change("truncate", relation.schema, relation.table)
        elif kind not in b"YOM":  # types, origins, messages of functions
            raise ValueError(kind)

    def _describe(self, reader: _Reader) -> None:
        number = reader.take("!I")
        schema, table = reader.text() or "pg_catalog", reader.text()
        _, count = reader.take("!cH")
        columns = []
        for _ in range(count):
            flags = reader.take("!B")
            name = reader.text()
            kind, _ = reader.take("!Ii")
            columns.append(Column(name, bool(flags & _KEY), self.loader_of(kind)))
        self.relations[number] = Relation(schema, table, tuple(columns))

    def _change(self, kind: bytes, reader: _Reader) -> Change:
        relation = self.relations[reader.take("!I")]
        old: dict[str, Any] | None = None
        new: dict[str, Any] | None = None
        unchanged: list[str] = []
        while reader.place < len(reader.data):
            part = reader.take("!c")
            if part == b"N":
                new, unchanged = _tuple(relation, reader, keys_only=False)
            else:
                old, _ = _tuple(relation, reader, keys_only=part == b"K")
        if new is not None and old is not None:
            # With REPLICA IDENTITY FULL the former row has what was not sent again.
            new.update({name: old[name] for name in unchanged if name in old})
            unchanged = [name for name in unchanged if name not in old]
        op = {b"I": "insert", b"U": "update", b"D": "delete"}[kind]
        return Change(op, relation.schema, relation.table, new, old, tuple(unchanged))


def _loaded(column: Column, text: bytes) -> Any:
    """Return the value; PostgreSQL's text of it if Python cannot hold it, such as an infinite date or one BC."""
    try:
        return column.load(text)
    except Exception:  # of any loader
        return text.decode(errors="backslashreplace")


def _tuple(relation: Relation, reader: _Reader, *, keys_only: bool) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a row by column, and the columns whose large values were not sent because they are the same.

    ``keys_only``: of a former row only the columns of its replica identity are sent.
    """
    values: dict[str, Any] = {}
    unchanged: list[str] = []
    count = reader.take("!H")
    for column in relation.columns[:count]:
        kind = reader.take("!c")
        if kind == b"u":
            unchanged.append(column.name)
            continue
        value = None
        if kind == b"t":
            value = _loaded(column, reader.piece(reader.take("!I")))
        elif kind != b"n":
            raise ValueError(kind)
        if not keys_only or column.is_key:
            values[column.name] = value
    return values, unchanged
