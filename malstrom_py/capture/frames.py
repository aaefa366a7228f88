"""The bytes of a captured stream: frames with checksums, in the format of ``docs/capture-format.md``.

A stream is kept in segments, one after the other. A segment begins with `MAGIC` and a header frame. Each frame has a
length, a kind, a checksum of these two, the payload, and a checksum of the payload: so a cut segment is `Truncated`
and a changed bit is `Corrupt`, and all frames before the damage can be used.

Rule (S8): a frame holds data, never code: no pickle.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any, BinaryIO, Final, Protocol
from zlib import crc32

import msgspec
import xxhash

from malstrom_py.codec import Codec
from malstrom_py.codec.in_flight import ARROW, PICKLED, decode_arrow, encode_arrow, pack_column, unpack_column
from malstrom_py.data.batch import Batch, ColumnBatch, place_of
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.data.row_form import DICTS
from malstrom_py.data.time import Unit
from malstrom_py.errors import CaptureError, MalstromError

MAGIC: Final = b"MSTRCAP1"
FORMAT: Final = 1
PAYLOAD_MAX: Final = 1 << 30
"""The largest payload, in bytes: a length above it is not believed."""

_HEAD: Final = struct.Struct("<IBI")
_CRC: Final = struct.Struct("<I")
_SUM: Final = struct.Struct("<Q")
_NS: Final = struct.Struct("<q")
_ROWS: Final = struct.Struct("<BI")
_COLUMN: Final = struct.Struct("<BQ")

HEADER: Final = ord("H")
BATCH: Final = ord("B")
PROGRESS: Final = ord("P")
CLOCK: Final = ord("C")
MOVED: Final = ord("M")
SNAPSHOT: Final = ord("S")
END: Final = ord("E")

_KEYED: Final = 1
_TIMED: Final = 2
_TUPLES: Final = ord("t")
_NAMED: Final = ord("n")
_PLACE: Final = struct.Struct("<I")
_STORED: Final = PICKLED
"""The tag of a column in the stored form of the codec: where a frame in flight would be pickled."""


class Truncated(CaptureError):
    """A segment ends before its end frame: what is before the cut can be used."""


class Corrupt(CaptureError):
    """Bytes of a segment have changed: what is before them can be used."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first frame of each segment.

    ``stream``: the name of the stream, one per writer. ``workers``: how many workers the job had when this one started.
    ``generation``: which start of the job captured it, from 1.
    ``segment``: the number of the segment in its stream, from 0. ``unit``: of the timestamps, None on an untimed
    stream; ``epochs``: whether event time advances in it. ``schema``: names and types of the columns of the first
    batch, None if it had rows.
    """

    job: str
    step: str
    stream: str
    worker: int
    workers: int = 1
    generation: int = 1
    segment: int = 0
    keyed: bool = False
    unit: Unit | None = None
    epochs: bool = False
    schema: tuple[tuple[str, str], ...] | None = None
    byteorder: str = sys.byteorder
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Progress:
    """Changes of the times at which the stream may still send: each is (time, delta)."""

    updates: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Clock:
    """The time at which what follows was captured, in ns since 1970, to the millisecond or so."""

    ns: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Keys or partitions have moved between workers: what a key has in the frames of lower versions came before.

    ``held``: the times that the stream holds from here on, as (time, count). They may be earlier ones, of a partition
    that has arrived. None in recordings of earlier versions: as before.
    """

    version: int
    held: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """What is before belongs to a snapshot; its segment ends here."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class End:
    """The explicit end of a segment: ``rows`` and ``frames`` before it, and whether the stream ends here too."""

    rows: int
    frames: int
    last: bool


Content = Header | Batch | Progress | Clock | Moved | Snapshotted | End


@dataclass(slots=True)
class SegmentWriter:
    """Writes the frames of one segment to ``write``, each with one call, so that a cut is between frames or in one.

    >>> from io import BytesIO
    >>> file = BytesIO()
    >>> segment = SegmentWriter(file.write, Header("docs", "seen", "w0", worker=0), Codec())
    >>> segment.batch(Batch([1, 2]))
    >>> segment.end(last=True)
    >>> [type(content).__name__ for _, content in contents(BytesIO(file.getvalue()), Codec())]
    ['Header', 'Batch', 'End']
    """

    write: Callable[[bytes], object]
    header: Header
    codec: Codec
    rows: int = 0
    frames: int = field(default=0, init=False)
    size: int = field(default=0, init=False)

    def begin(self) -> None:
        """Write the header, before the first batch is known."""
        self._begin(None)

    def batch(self, batch: Batch) -> None:
        """Write a batch. `CodecError` if a key or value cannot be stored."""
        self._begin(batch)
        self._frame(BATCH, *encoded_parts(batch, self.codec, self.header.step))
        self.rows += len(batch)

    def progress(self, *updates: tuple[int, int]) -> None:
        """Write changes of the times held."""
        self._begin(None)
        self._frame(PROGRESS, msgspec.msgpack.encode(updates))

    def clock(self, ns: int) -> None:
        """Write the time."""
        self._begin(None)
        self._frame(CLOCK, _NS.pack(ns))

    def moved(self, version: int, epoch: int) -> None:
        """Write that keys have moved, and that no record at or below ``epoch`` follows."""
        self._begin(None)
        held = [] if epoch == MAX_EPOCH else [(opened_at(epoch), 1)]
        self._frame(MOVED, msgspec.msgpack.encode((version, held)))

    def snapshot(self, snapshot: str) -> None:
        """Write that a snapshot ends here."""
        self._begin(None)
        self._frame(SNAPSHOT, snapshot.encode())

    def end(self, *, last: bool) -> None:
        """Write the end."""
        self._begin(None)
        self._frame(END, msgspec.msgpack.encode((self.rows, self.frames, last)))

    def _begin(self, first: Batch | None) -> None:
        if self.frames:
            return
        values = asdict(self.header)
        if isinstance(first, ColumnBatch) and first.form is DICTS:
            values["schema"] = [(name, str(kind)) for name, kind in zip(*_names_and_types(first), strict=True)]
        self.write(MAGIC + frame(HEADER, msgspec.msgpack.encode(values)))
        self.frames = 1

    def _frame(self, kind: int, *payload: bytes | memoryview) -> None:
        written = frame(kind, *payload)
        self.write(written)
        self.frames += 1
        self.size += len(written)


def _names_and_types(batch: ColumnBatch) -> tuple[list[str], list[Any]]:
    schema = batch.columns.schema
    return schema.names, schema.types


def frame(kind: int, *payload: bytes | memoryview) -> bytes:
    """Return the bytes of one frame, whose payload is given in parts."""
    start = struct.pack("<IB", sum(map(len, payload)), kind)
    digest = xxhash.xxh3_64()
    for part in payload:
        digest.update(part)
    return b"".join((start, _CRC.pack(crc32(start)), *payload, _SUM.pack(digest.intdigest())))


def encode(batch: Batch, codec: Codec, step: str) -> bytes:
    """Return the payload of a batch: see `encoded_parts`."""
    return b"".join(encoded_parts(batch, codec, step))


def encoded_parts(batch: Batch, codec: Codec, step: str) -> list[bytes | memoryview]:
    """Return the payload of a batch: keys, timestamps and values as columns, each with a tag and its size.

    Keys or timestamps that are one of the columns of the values are named only.
    """
    values = _values_of(batch)
    columns: list[Any] = []
    flags = 0
    for flag, column in ((_KEYED, _keys_of(batch)), (_TIMED, _times_of(batch)), (0, values)):
        if column is not None:
            flags |= flag
            columns.append(column)
    parts: list[bytes | memoryview] = [_ROWS.pack(flags, len(batch))]
    for column in columns:
        by_itself = column is values or list in (type(column), type(values))
        place = None if by_itself else place_of(column, values)
        tag, data = _encoded(column, codec, step) if place is None else (_NAMED, _PLACE.pack(place))
        parts += (_COLUMN.pack(tag, len(data)), data)
    return parts


def _keys_of(batch: Batch) -> Any:
    return batch.keys if batch.key_column is None else batch.key_column


def _times_of(batch: Batch) -> Any:
    return batch.timestamps if batch.time_column is None else batch.time_column


def _values_of(batch: Batch) -> Any:
    return batch.columns if isinstance(batch, ColumnBatch) and batch.form is DICTS else batch.values


def _encoded(column: Any, codec: Codec, step: str) -> tuple[int, bytes | memoryview]:
    if type(column) is not list:
        return ARROW, encode_arrow(column)
    packed = pack_column(column) or _packed_tuples(column)
    return (_STORED, codec.encode_at_rest(column, step=step)) if packed is None else packed


def _packed_tuples(column: list[Any]) -> tuple[int, bytes] | None:
    """Return tuples of one length as a column per field, each of one plain type; None for all others."""
    if not column or set(map(type, column)) != {tuple} or len(set(map(len, column))) != 1 or not column[0]:
        return None
    parts: list[bytes] = []
    for place in range(len(column[0])):  # faster than to transpose them by zip
        packed = pack_column(list(map(itemgetter(place), column)))
        if packed is None:
            return None
        parts += (_COLUMN.pack(packed[0], len(packed[1])), packed[1])
    return _TUPLES, b"".join(parts)


def _unpacked_tuples(data: memoryview, rows: int) -> list[Any]:
    fields, at = [], 0
    while at < len(data):
        tag, size = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size + size
        if tag in (_STORED, _TUPLES):
            raise Corrupt("a field of tuples is of a kind that is not allowed there")
        fields.append(unpack_column(tag, data[at - size : at], rows))
    return list(zip(*fields, strict=True))


def decode(payload: memoryview, codec: Codec) -> Batch:
    """Return the batch of a payload."""
    flags, rows = _ROWS.unpack_from(payload)
    at = _ROWS.size
    columns: list[Any] = []
    for is_there, is_values in ((flags & _KEYED, False), (flags & _TIMED, False), (True, True)):
        column = None
        if is_there:
            tag, data, at = _column_at(payload, at)
            column = _decoded(tag, data, rows, codec, is_values=is_values)
        columns.append(column)
    keys, times, values = columns
    if isinstance(values, list):
        if isinstance(keys, _Place) or isinstance(times, _Place):
            raise Corrupt("keys or timestamps are a column of values without columns")
        return Batch(values, keys=_as_list(keys), timestamps=_as_list(times))
    return ColumnBatch(
        values,
        keys=keys if isinstance(keys, list) else None,
        key_column=None if keys is None or isinstance(keys, list) else keys.of(values),
        timestamps=times if isinstance(times, list) else None,
        time_column=None if times is None or isinstance(times, list) else times.of(values),
        named=True,
    )


def latest(payload: memoryview) -> int | None:
    """Return the largest timestamp of a batch, without decoding its rows; None if it has none, or not as numbers."""
    flags, rows = _ROWS.unpack_from(payload)
    if not flags & _TIMED or not rows:
        return None
    at = _ROWS.size
    if flags & _KEYED:
        at += _COLUMN.size + _COLUMN.unpack_from(payload, at)[1]
    tag, data, at = _column_at(payload, at)
    if tag in (_STORED, _TUPLES):
        return None
    last: int
    if tag not in (ARROW, _NAMED):
        last = max(unpack_column(tag, data, rows))
        return last
    place = 0
    if tag == _NAMED:
        (place,) = _PLACE.unpack(data)
        _, data, _ = _column_at(payload, at)
    last = int(decode_arrow(data, rows).column(place).cast("int64").to_numpy(zero_copy_only=False).max())
    return last


def _column_at(payload: memoryview, at: int) -> tuple[int, memoryview, int]:
    """Return the tag and the bytes of the column at ``at``, and where the next one begins."""
    tag, size = _COLUMN.unpack_from(payload, at)
    end = at + _COLUMN.size + size
    return tag, payload[end - size : end], end


@dataclass(frozen=True, slots=True)
class _Own:
    """A column of keys or timestamps."""

    column: Any

    def of(self, values: Any) -> Any:
        return self.column


@dataclass(frozen=True, slots=True)
class _Place:
    """Keys or timestamps that are the column number ``place`` of the values."""

    place: int

    def of(self, values: Any) -> Any:
        return values.column(self.place)


def _decoded(tag: int, data: memoryview, rows: int, codec: Codec, *, is_values: bool) -> Any:
    if tag == ARROW:
        return decode_arrow(data, rows) if is_values else _Own(decode_arrow(data, rows).column(0))
    if tag == _NAMED and not is_values:
        return _Place(*_PLACE.unpack(data))
    if tag not in (_STORED, _TUPLES):
        return unpack_column(tag, data, rows)
    column = codec.decode_at_rest(data) if tag == _STORED else _unpacked_tuples(data, rows)
    if type(column) is not list or len(column) != rows:
        raise Corrupt("a column has another number of rows than its batch")
    return column


def _as_list(column: Any) -> list[Any] | None:
    return column if column is None or isinstance(column, list) else column.column.to_pylist()


class Readable(Protocol):
    """A file object of a segment."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, at: int, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame whose checksums are right. ``at``: where it begins in its segment; ``end``: where the next one begins."""

    kind: int
    payload: memoryview
    at: int
    end: int


def is_before(frame: Frame, since: int) -> bool:
    """Return whether all records of a batch are before ``since``, without decoding them."""
    last = latest(frame.payload)
    return last is not None and last < since


def frames(file: Readable, start: int = 0) -> Iterator[Frame]:
    """Read the frames of a segment from the byte ``start``, a frame's begin.

    Raises:
        Truncated: the segment ends without an end frame; all complete frames were returned.
        Corrupt: a checksum, the magic or a length is wrong; all frames before were returned.
    """
    at = start or _begin(file)
    file.seek(at)
    while True:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise Truncated(f"it ends at byte {at + len(head):,} without an end frame")
        size, kind, checksum = _HEAD.unpack(head)
        if crc32(head[:5]) != checksum or size > PAYLOAD_MAX:
            raise Corrupt(f"the head of the frame at byte {at:,} has changed")
        body = file.read(size + _SUM.size)
        if len(body) < size + _SUM.size:
            raise Truncated(f"it ends at byte {at + len(head) + len(body):,}, within a frame")
        payload = memoryview(body)[:size]
        if xxhash.xxh3_64_intdigest(payload) != _SUM.unpack_from(body, size)[0]:
            raise Corrupt(f"the frame at byte {at:,} has changed")
        end = at + _HEAD.size + size + _SUM.size
        yield Frame(kind, payload, at, end)
        at = end
        if kind == END:
            if file.read(1):
                raise Corrupt(f"bytes follow the end frame, from byte {at:,} on")
            return


def _begin(file: Readable) -> int:
    """Check how a segment begins, and return where its first frame does."""
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        if MAGIC.startswith(magic):
            raise Truncated(f"it has {len(magic)} bytes, and no header")
        raise Corrupt("it does not begin as a captured stream does: it is another kind of file, or damaged")
    return len(MAGIC)


def contents(file: BinaryIO, codec: Codec, start: int = 0) -> Iterator[tuple[Frame, Content]]:
    """Read the frames of a segment and what they mean. Frames of unknown kinds are left out."""
    for each in frames(file, start):
        content = content_of(each, codec)
        if content is not None:
            yield each, content


def content_of(each: Frame, codec: Codec) -> Content | None:
    """Return what a frame means, None if its kind is unknown.

    Raises:
        Corrupt: its payload is invalid although its checksum is right: another program has written it.
    """
    read = _READERS.get(each.kind)
    try:
        return None if read is None else read(each.payload, codec)
    except MalstromError:
        raise
    except Exception as error:
        raise Corrupt(f"the frame at byte {each.at:,} cannot be read ({type(error).__name__})") from error


def _read_header(payload: memoryview, codec: Codec) -> Header:
    values = msgspec.msgpack.decode(payload, type=dict[str, Any])
    if values.get("format") != FORMAT:
        raise Corrupt(f"it has format {values.get('format')!r}, and this version reads {FORMAT}")
    if values.get("byteorder") != sys.byteorder:
        raise Corrupt(f"it is from a machine whose numbers are {values.get('byteorder')!r}-endian")
    return msgspec.convert({name: values[name] for name in values if name in Header.__dataclass_fields__}, Header)


_MovedTo = tuple[int, tuple[tuple[int, int], ...]]


def _read_moved(moved: int | _MovedTo) -> Moved:
    return Moved(moved) if isinstance(moved, int) else Moved(*moved)


_READERS: Final[dict[int, Callable[[memoryview, Codec], Content]]] = {
    HEADER: _read_header,
    BATCH: decode,
    PROGRESS: lambda payload, _: Progress(msgspec.msgpack.decode(payload, type=tuple[tuple[int, int], ...])),
    CLOCK: lambda payload, _: Clock(*_NS.unpack(payload)),
    MOVED: lambda payload, _: _read_moved(msgspec.msgpack.decode(payload, type=int | _MovedTo)),
    SNAPSHOT: lambda payload, _: Snapshotted(str(payload, "utf-8")),
    END: lambda payload, _: End(*msgspec.msgpack.decode(payload, type=tuple[int, int, bool])),
}


def opened_at(epoch: int) -> int:
    """Return the earliest time at which a stream that has passed ``epoch`` may still send.

    >>> opened_at(MIN_EPOCH) == MIN_EPOCH, opened_at(7)
    (True, 8)
    """
    return epoch if epoch == MIN_EPOCH else epoch + 1


def advance(before: int, after: int) -> Sequence[tuple[int, int]]:
    """Return the updates by which a stream goes from the epoch ``before`` to ``after``: the maximum completes it."""
    closed = (opened_at(before), -1)
    return [closed] if after == MAX_EPOCH else [(opened_at(after), 1), closed]
