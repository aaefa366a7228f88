"""``RedisStream``: a source over streams of Redis. Each stream is a partition; a position is the id of an entry.

Rule: entries and the state of their stream are read in one transaction, so that the numbers of `positions` fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from malstrom_py.formats import Format, converter
from malstrom_py.sources.base import Part
from malstrom_py.sources.polled import PolledChunk, PolledReader, PolledSource, problems
from malstrom_py.validation import checked_choice, checked_names

if TYPE_CHECKING:
    import redis

V_co = TypeVar("V_co", covariant=True)

Fields = dict[bytes, bytes]
Entry = tuple[bytes, Fields]

_log = logging.getLogger(__name__)

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


class RedisStream(PolledSource[V_co]):
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

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        *,
        start: str = "first",
        value: Callable[[str, Fields], V_co] | Format | None = None,
        on_gap: problems.Gap = "fail",
        follow: bool = True,
    ) -> None:
        super().__init__("sources.RedisStream", follow=follow)
        self._url = check_url(url, "sources.RedisStream")
        self._names = checked_names(streams, "sources.RedisStream: streams", "the name of a stream, or several")
        if not isinstance(start, str) or (start not in ("first", "new") and parse_id(start) is None):
            raise PlanError(f"sources.RedisStream: start is 'first', 'new' or the id of an entry, got {shown(start)}")
        self._start = start
        self._value: Callable[[str, Fields], Any] = (
            converter(value, "sources.RedisStream: value", "id and fields", partial(partial, _decoded)) or texts_of
        )
        self._on_gap: problems.Gap = checked_choice(on_gap, "sources.RedisStream: on_gap", "fail", "skip")

    def __repr__(self) -> str:
        return f"RedisStream({', '.join(self._names)} at {place_of(self._url)})"

    def list_parts(self) -> Sequence[Part]:
        return [Part(name) for name in self._names]

    def open(self, part: Part, position: Any, end: str | None) -> Reader:
        return Reader(self._url, part, position_of(position), self._on_gap, is_bounded=end is not None)

    def find_ends(self) -> dict[str, str]:
        return {name: show_id(_last_of(self._state(name))) for name in self._names}

    def find_start(self, part: Part) -> dict[str, Any] | None:
        id = None if self._start == "new" else before(parse_id(self._start) or ZERO)
        if self._start == "first" or id == ZERO:
            return None
        stream = self._state(part)
        if stream is None:
            return Position(added=0).plain()
        is_new = id is None or id >= stream.last
        return (Position(stream.last, stream.added) if is_new else Position(id or ZERO)).plain()

    def order(self, position: Any) -> EntryId:
        return parse_id(position) or ZERO if isinstance(position, str) else position_of(position).id

    def values(self, records: Sequence[Entry]) -> Iterator[V_co]:
        return (self._value(id.decode(), fields) for id, fields in records)

    def describe(self, part: Part, record: Entry) -> tuple[str, Any]:
        return f"the entry {record[0].decode()} of the stream {part!r}", record[1]

    def _state(self, name: str) -> StreamState | None:
        """Return the state of a stream now; None if it does not exist."""
        reader = Reader(self._url, name, Position(), self._on_gap)
        try:
            with redis_errors(SourceError, f"Reading the stream {name!r}", self._url):
                return reader.answers(1)[0]
        finally:
            reader.close()


def _last_of(stream: StreamState | None) -> EntryId:
    return ZERO if stream is None else stream.last


class Reader(PolledReader[Entry]):
    """Reads the entries of one stream after ``position``. ``is_bounded``: does not wait for more."""

    def __init__(
        self, url: str, name: str, position: Position, on_gap: problems.Gap, *, is_bounded: bool = False
    ) -> None:
        self.name = f"the stream {name!r} in the Redis at {place_of(url)}"
        self._url = url
        self._stream = name
        self._position = position
        self._on_gap: problems.Gap = on_gap
        self._is_bounded = is_bounded
        self._client: redis.Redis | None = None

    def read(self, rows_max: int) -> PolledChunk[Entry] | None:
        with redis_errors(SourceError, f"Reading the stream {self._stream!r}", self._url):
            stream, entries = self.answers(rows_max)
            if is_another(self._position, stream):
                raise self._is_another()
            is_end = len(entries) < rows_max
            added = self._accounted(stream, len(entries), is_end=is_end)
            if not entries and added == self._position.added and not self._is_bounded:
                self._wait()
                return None
        id = self._position.id

        def position(number: int) -> dict[str, Any]:
            after = None if added is None else added + number + 1
            return Position(parse_id(entries[number][0]) or ZERO, after).plain()

        last = parse_id(entries[-1][0]) if entries else None
        self._position = Position(last or id, None if added is None else added + len(entries))
        return PolledChunk(
            entries,
            position,
            before=Position(id, added).plain(),
            left=None if added is None or stream is None else max(0, stream.added - added - len(entries)),
            size=sum(len(name) + len(value) for _, fields in entries for name, value in fields.items()),
            is_end=is_end,
        )

    def answers(self, count: int) -> tuple[StreamState | None, list[Entry]]:
        """Return the state of the stream, None if it does not exist, and up to ``count`` entries after the position."""
        import redis

        with self._connected().pipeline(transaction=True) as pipe:
            pipe.xinfo_stream(self._stream)
            pipe.xread({self._stream: show_id(self._position.id)}, count=count)
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
                    f"the Redis at {place_of(self._url)} does not count the entries of a stream, and so cannot show "
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
            self._client = connect(self._url)
        return self._client

    def _wait(self) -> None:
        """Wait for an entry, for a short time. It is then read again, with the state of the stream."""
        self._connected().xread({self._stream: show_id(self._position.id)}, count=1, block=_BLOCK_MS)

    def _accounted(self, stream: StreamState | None, read: int, *, is_end: bool) -> int | None:
        """Return the number of entries before those that were read; fail or warn if some are missing."""
        if stream is None:
            return 0
        known = self._position.added
        found = count_before(self._position, stream, read, is_end=is_end)
        if known is None or found is None or found == known:
            return found
        if found < known:
            raise self._is_another()
        missing = f"{found - known} entries of the stream {self._stream!r}, after the id {show_id(self._position.id)},"
        problems.missing(missing, "Keep entries longer (MAXLEN, XTRIM, XDEL)", self._on_gap, _log)
        return found

    def _is_another(self) -> SourceError:
        return problems.another(self.name, f"the id {show_id(self._position.id)}")
