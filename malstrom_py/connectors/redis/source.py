"""``RedisStream``: a source over streams of Redis. Each stream is a partition; a position is the id of an entry.

Rule: entries and the state of their stream are read in one transaction, so that the numbers of `positions` fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from malstrom_py.connectors.read_ahead import ReadAhead, values_of
from malstrom_py.connectors.redis.client import check_url, connect, place_of, redis_errors
from malstrom_py.connectors.redis.positions import (
    ZERO,
    EntryId,
    Position,
    StreamState,
    before,
    count_before,
    is_another,
    parse_id,
    position_of,
    show_id,
    state_of,
)
from malstrom_py.errors import PlanError, SourceError, lasting, shown
from malstrom_py.formats import Format
from malstrom_py.sources.base import BasePart, Part
from malstrom_py.sources.up_to_ends import FINISHED, UpToEnds, has_finished

if TYPE_CHECKING:
    import redis

V_co = TypeVar("V_co", covariant=True)

Fields = dict[bytes, bytes]
Entry = tuple[bytes, Fields]
Gap = Literal["fail", "skip"]

_log = logging.getLogger(__name__)

_ENTRIES_FIRST: Final = 64
_ENTRIES_MAX: Final = 1000
_CHUNK_BYTES: Final = 8 << 20
_BLOCK_MS: Final = 250
"""How long Redis waits for an entry before it answers that there is none."""


def texts_of(id: str, fields: Fields) -> dict[str, str]:
    """Return the fields of an entry as text.

    >>> texts_of("7-0", {b"item": b"lamp", b"pieces": b"2"})
    {'item': 'lamp', 'pieces': '2'}
    """
    return {name.decode(): value.decode() for name, value in fields.items()}


def _decoded(format: Format, id: str, fields: Fields) -> Any:
    return format.decode(fields[b"value"])


class RedisStream(UpToEnds[V_co]):
    """A source of the entries of Redis streams, exactly once into the state of the job.

    ``streams``: the name of a stream, or several. Each is a partition, read in order by one worker, without end. With
    ``follow=False`` it is read up to the entry that is the newest when the job starts; a job with snapshots that has
    finished reads, when it is started again, what is new since. Positions are stored in the snapshots of the job.
    Nothing is written to Redis, and no consumer group is used. A stream may be missing at first.

    ``start``: where a job begins that does not resume: ``"first"``, the oldest entry that is there; ``"new"``, after
    the newest; or an id: ``"1526919030474-0"``, or ``"1526919030474"`` for that time, in milliseconds since 1970; one
    after the newest entry means ``"new"``.

    ``value(id, fields)`` makes the value of an entry; ``fields`` is a dict of bytes. By default it is a dict of text,
    by UTF-8. One of `formats` decodes the field ``value``. If it raises, the record is malformed (``on_error=`` of
    ``job.source``).

    An entry that was removed before it was read, by ``XTRIM``, ``MAXLEN`` or ``XDEL``, is a `SourceError`. With
    ``on_gap="skip"`` it is a warning with their number, and the job continues with the entries that follow. A stream
    that was deleted and made again, or lost entries that were read, is a `SourceError` always.

    It needs Redis 7.0 or newer. While Redis does not answer, calls are repeated for about ten seconds.

    PlanError: wrong arguments, or the client is not installed. SourceError: Redis cannot be reached or refuses, or
    entries are missing.

    >>> source = RedisStream("redis://localhost:6379/0", ["orders", "returns"])
    >>> source.list_parts()
    ['orders', 'returns']
    """

    parts_open_max = 64

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        *,
        start: str = "first",
        value: Callable[[str, Fields], V_co] | Format | None = None,
        on_gap: Gap = "fail",
        follow: bool = True,
    ) -> None:
        super().__init__("sources.RedisStream", follow=follow)
        self._url = check_url(url, "sources.RedisStream")
        names = [streams] if isinstance(streams, str) else list(streams)
        if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise PlanError("sources.RedisStream: streams is the name of a stream, or several different names")
        if not isinstance(start, str) or (start not in ("first", "new") and parse_id(start) is None):
            raise PlanError(f"sources.RedisStream: start is 'first', 'new' or the id of an entry, got {shown(start)}")
        if isinstance(value, Format):
            value = partial(_decoded, value)
        if value is not None and not callable(value):
            raise PlanError(f"sources.RedisStream: value is a function of id and fields, got {type(value).__name__}")
        if on_gap not in ("fail", "skip"):
            raise PlanError(f"sources.RedisStream: on_gap is 'fail' or 'skip', got {shown(on_gap)}")
        self._names = names
        self._start = start
        self._value: Callable[[str, Fields], Any] = value or texts_of
        self._on_gap: Gap = on_gap

    def __repr__(self) -> str:
        return f"RedisStream({', '.join(self._names)} at {place_of(self._url)})"

    def list_parts(self) -> Sequence[Part]:
        return [Part(name) for name in self._names]

    def build_part(self, part: Part, state: Any) -> StreamPart[V_co]:
        position = self._first(part) if state is None else position_of(state)
        stop = None if self._follow else parse_id(self._end_of(part) or self._last(part)) or ZERO
        is_finished = position.id == stop or (stop is not None and self._begins_at_end(state, position.id, stop))
        reader = Reader(self._url, part, position, self._on_gap, stop)
        return StreamPart(reader, position, self._value, is_finished=is_finished)

    def _find_ends(self) -> dict[str, str]:
        return {name: self._last(name) for name in self._names}

    def _is_at(self, position: Any, end: str) -> bool:
        return position is not None and position_of(position).id == parse_id(end)

    def _begins_at_end(self, state: Any, id: EntryId, stop: EntryId) -> bool:
        """Return whether nothing is to be read: after a late start, or of a partition that was read outside a job."""
        return id > stop if state is None else has_finished(state) and not self._is_pinned

    def _last(self, name: str) -> str:
        """Return the id of the newest entry there has been."""
        stream = self._state(name)
        return show_id(ZERO if stream is None else stream.last)

    def _first(self, name: str) -> Position:
        """Return where a partition begins. All but "first" is fixed when the job starts, by a call to Redis."""
        id = None if self._start == "new" else before(parse_id(self._start) or ZERO)
        if self._start == "first" or id == ZERO:
            return Position()
        stream = self._state(name)
        if stream is None:
            return Position(added=0)
        return Position(stream.last, stream.added) if id is None or id >= stream.last else Position(id)

    def _state(self, name: str) -> StreamState | None:
        """Return the state of a stream now; None if it does not exist."""
        reader = Reader(self._url, name, Position(), self._on_gap)
        try:
            with redis_errors(SourceError, f"Reading the stream {name!r}", self._url):
                return reader.read(1)[0]
        finally:
            reader.close()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries in order. ``before``: how many had been added before the first of them; ``added``: up to now.

    ``is_last``: nothing follows up to the end at which the partition stops.
    """

    entries: Sequence[Entry] = ()
    before: int | None = None
    added: int = 0
    is_last: bool = False


@dataclass(slots=True)
class Reader:
    """Reads chunks of one stream, from ``position`` on, up to the id ``stop``, if given. Used by one thread."""

    url: str
    name: str
    position: Position
    on_gap: Gap
    stop: EntryId | None = None
    _is_done: bool = False
    _count: int = _ENTRIES_FIRST
    _client: redis.Redis | None = field(default=None, repr=False)

    def fetch(self) -> Chunk | None:
        """Return the next chunk; None if nothing was added for a while. `StopIteration` after the last one."""
        if self._is_done:
            raise StopIteration
        with redis_errors(SourceError, f"Reading the stream {self.name!r}", self.url):
            count = self._count
            stream, entries = self.read(count)
            if is_another(self.position, stream):
                raise self._is_another()
            added_before = self._accounted(stream, len(entries), is_end=len(entries) < count)
            if self.stop is not None:
                entries = self._up_to(self.stop, entries, is_end=len(entries) < count)
            elif not entries and added_before == self.position.added:
                self._wait()
                return None
            last = parse_id(entries[-1][0]) if entries else None
            added = None if added_before is None else added_before + len(entries)
            self.position = Position(last or self.position.id, added)
            self._count = _fitting(entries, count)
            return Chunk(entries, added_before, stream.added if stream else 0, self._is_done)

    def _up_to(self, stop: EntryId, entries: list[Entry], *, is_end: bool) -> list[Entry]:
        """Return those of ``entries`` up to ``stop``, and note whether there are no more."""
        kept = [entry for entry in entries if (parse_id(entry[0]) or ZERO) <= stop]
        last = parse_id(kept[-1][0]) if kept else None
        self._is_done = is_end or len(kept) < len(entries) or last == stop
        return kept

    def read(self, count: int) -> tuple[StreamState | None, list[Entry]]:
        """Return the state of the stream, None if it does not exist, and up to ``count`` entries after the position."""
        import redis

        with self._connected().pipeline(transaction=True) as pipe:
            pipe.xinfo_stream(self.name)
            pipe.xread({self.name: show_id(self.position.id)}, count=count)
            answers: Any = pipe.execute(raise_on_error=False)
        info, read = answers
        if isinstance(info, redis.ResponseError) and "no such key" in str(info):
            return None, []
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        stream = state_of(answers[0])
        if stream is None:
            raise lasting(
                SourceError(
                    f"the Redis at {place_of(self.url)} does not count the entries of a stream, and so cannot show "
                    f"that none is missing: use Redis 7.0 or newer"
                )
            )
        return stream, read[0][1] if read else []

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _connected(self) -> redis.Redis:
        if self._client is None:
            self._client = connect(self.url)
        return self._client

    def _wait(self) -> None:
        """Wait for an entry, for a short time. It is then read again, with the state of the stream."""
        self._connected().xread({self.name: show_id(self.position.id)}, count=1, block=_BLOCK_MS)

    def _accounted(self, stream: StreamState | None, read: int, *, is_end: bool) -> int | None:
        """Return the number of entries before those that were read; fail or warn if some are missing."""
        if stream is None:
            return 0
        known = self.position.added
        found = count_before(self.position, stream, read, is_end=is_end)
        if known is None or found is None or found == known:
            return found
        if found < known:
            raise self._is_another()
        missing = f"{found - known} entries of the stream {self.name!r} were removed before they were read"
        if self.on_gap == "fail":
            raise lasting(
                SourceError(
                    f"{missing}, after the id {show_id(self.position.id)}. Keep entries longer (MAXLEN, XTRIM, XDEL). "
                    f"To continue with those that are there, use on_gap='skip'."
                )
            )
        _log.warning("%s, after the id %s: the job continues without them", missing, show_id(self.position.id))
        return found

    def _is_another(self) -> SourceError:
        return lasting(
            SourceError(
                f"the stream {self.name!r} in the Redis at {place_of(self.url)} is not the one that was read up to the "
                f"id {show_id(self.position.id)}: it was deleted or made again, or Redis has lost its newest entries. "
                f"Restore the stream, or start the job without resuming."
            )
        )


def _fitting(entries: Sequence[Entry], count: int) -> int:
    """Return how many entries to read next: at most twice as many as before, and a limited size in bytes."""
    if not entries:
        return count
    size = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items()) // len(entries)
    return max(1, min(_ENTRIES_MAX, 2 * count, _CHUNK_BYTES // (size + 1)))


class StreamPart(BasePart[V_co]):
    """One stream while it is read."""

    def __init__(
        self, reader: Reader, position: Position, value: Callable[[str, Fields], V_co], *, is_finished: bool = False
    ) -> None:
        self._name = reader.name
        self._is_finished = is_finished
        self._position = position
        self._value = value
        self._chunk = Chunk()
        self._taken = 0
        self._added: int | None = None
        self._ahead: ReadAhead[Chunk] | None = None
        if not is_finished:
            self._ahead = ReadAhead(reader.fetch, name=f"redis-{reader.name}", release=reader.close)

    def poll(self, rows_max: int) -> list[V_co] | None:
        if self._is_finished or self._ahead is None:
            return None
        if self._taken >= len(self._chunk.entries):
            chunk = self._ahead.take()
            if chunk is None:
                return None
            self._chunk, self._taken, self._added = chunk, 0, chunk.added
            self._position = Position(self._position.id, chunk.before)
            self._is_finished = chunk.is_last and not chunk.entries
        return values_of(
            self._chunk.entries[self._taken : self._taken + rows_max],
            lambda entry: self._value(entry[0].decode(), entry[1]),
            advance=self._advance,
            described=lambda entry: (f"the entry {entry[0].decode()} of the stream {self._name!r}", entry[1]),
        )

    def is_finished(self) -> bool:
        return self._is_finished

    def snapshot(self) -> dict[str, Any]:
        return self._position.plain() | ({FINISHED: True} if self._is_finished else {})

    def lag_rows(self) -> int | None:
        if self._added is None or self._position.added is None:
            return None
        return max(0, self._added - self._position.added)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _advance(self, rows: int) -> None:
        if not rows:
            return
        self._taken += rows
        added = self._position.added
        last = parse_id(self._chunk.entries[self._taken - 1][0])
        self._position = Position(last or ZERO, None if added is None else added + rows)
        self._is_finished = self._chunk.is_last and self._taken == len(self._chunk.entries)
