"""Batches and state between the workers of one job: as fast as possible, and back as exactly the types they were.

Values of any type between the workers of one job: pickle 5, and cloudpickle where pickle gives up (lambdas, classes
made inside functions). Never at rest.

One column of a batch as bytes, and back: packed where all values are of one plain type, pickle otherwise.

What is in Arrow already goes as an Arrow IPC stream.

``docs/codec.md`` has what each candidate costs.

A frame around what travels between the workers of one job: version, byte order, and a checksum.

Rule: what is inside a frame may be pickle, so it is opened only behind a checksum. That finds damage, not malice:
the workers of one job trust each other, and the transport makes sure that nobody else speaks.

Batches and state between the workers of one job: as fast as possible, and back as exactly the types they were (S8).

A batch is a frame: rows, what columns there are, the part; then per column one byte of tag, its size, its bytes.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import xxhash

from malstrom_py.codec.encoding_errors import NotDecodable, NotEncodable, decode_error, encode_error
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import CodecError

if TYPE_CHECKING:
    import pyarrow as pa

_PROTOCOL: Final = 5


def dump(value: Any) -> bytes:
    """``value`` as pickle. `NotEncodable` if neither pickle nor cloudpickle takes it."""
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception:
        try:
            return _by_cloudpickle(value)
        except Exception as error:
            why = f"neither pickle nor cloudpickle takes it ({type(error).__name__}). Send what it is made of instead"
            raise NotEncodable(type(value), why) from error


def _by_cloudpickle(value: Any) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it is not annotated
        def reducer_override(self, obj: Any) -> Any:
            # cloudpickle would send it as bytes, and a value must come back as what it was.
            if type(obj) is memoryview:
                raise TypeError("a memoryview would come back as bytes")
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer, _PROTOCOL).dump(value)
    return buffer.getvalue()


def load(data: bytes | memoryview) -> Any:
    """The inverse of `dump`. Runs what the pickle says: only for what a worker of the same job has sent."""
    return pickle.loads(data)


def first_refused(values: Sequence[Any]) -> int | None:
    """The index of the first of ``values`` that cannot be dumped on its own; None if each can."""
    for index, value in enumerate(values):
        try:
            dump(value)
        except NotEncodable:
            return index
    return None


PICKLED: Final = ord("p")
INTS: Final = ord("q")  # int64, native byte order
FLOATS: Final = ord("d")  # float64, native byte order
STRINGS: Final = ord("s")  # UTF-8 with NUL between them
ARROW: Final = ord("a")  # an Arrow IPC stream of one record batch

_NUL: Final = "\0"


def encode_column(column: list[Any]) -> tuple[int, bytes]:
    r"""The tag of a column, and its bytes. `NotEncodable` if a value can be neither packed nor pickled.

    >>> encode_column(["UA", "B6"])
    (115, b'UA\x00B6')
    """
    rows = len(column)
    if rows:
        kind = type(column[0])
        # Of all ways to ask whether a column is of one exact type this is the fastest. Subclasses do not count: a
        # bool in a column of ints is to come back as a bool.
        if (kind is str or kind is int or kind is float) and list(map(type, column)).count(kind) == rows:
            if kind is str:
                text = _NUL.join(column)
                if text.count(_NUL) == rows - 1:
                    return STRINGS, text.encode("utf-8", "surrogatepass")
            elif kind is float:
                return FLOATS, struct.pack(f"{rows}d", *column)
            else:
                try:
                    return INTS, struct.pack(f"{rows}q", *column)
                except struct.error:
                    """Beyond 64 bits: pickle takes it."""
    return PICKLED, dump(column)


def decode_column(tag: int, data: memoryview, rows: int) -> list[Any]:
    """The column of ``rows`` rows that `encode_column` made these bytes of."""
    if tag == STRINGS:
        column: Any = str(data, "utf-8", "surrogatepass").split(_NUL)
    elif tag == INTS:
        column = data.cast("q").tolist()
    elif tag == FLOATS:
        column = list(struct.unpack(f"{len(data) // 8}d", data))
    elif tag == PICKLED:
        column = load(data)
    else:
        raise NotDecodable(f"columns of kind {tag} are unknown")
    if type(column) is not list or len(column) != rows:
        raise NotDecodable("a column has another length than its batch")
    return column


def encode_arrow(column: pa.RecordBatch | pa.Array) -> bytes:
    """A record batch, or one column, as an Arrow IPC stream."""
    import pyarrow as pa

    batch = column if isinstance(column, pa.RecordBatch) else pa.RecordBatch.from_arrays([column], names=[""])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = stream.getvalue().to_pybytes()
    return data


def decode_arrow(data: memoryview, rows: int) -> pa.RecordBatch:
    """The record batch that `encode_arrow` made these bytes of; a column alone is the only one of it."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        batch = reader.read_next_batch()
    batch.validate()
    if batch.num_rows != rows:
        raise NotDecodable("a column has another length than its batch")
    return batch


_VERSION: Final = 0x21 if sys.byteorder == "little" else 0x22
_HEADER: Final = struct.Struct("<BBQ")  # version and byte order, kind of contents, checksum of all that follows

HEADER_BYTES: Final = _HEADER.size


def close_frame(kind: int, parts: Sequence[bytes]) -> bytes:
    """One frame with ``parts`` in it, joined.

    >>> open_frame(7, close_frame(7, [b"ab", b"c"])).tobytes()
    b'abc'
    """
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    return b"".join((_HEADER.pack(_VERSION, kind, checksum.intdigest()), *parts))


def open_frame(kind: int, frame: bytes | memoryview) -> memoryview:
    """What is in a frame, without a copy. `NotDecodable` if it is not what a worker like this one has closed."""
    data = memoryview(frame)
    if len(data) < HEADER_BYTES:
        raise NotDecodable("it ends too soon")
    version, found, checksum = _HEADER.unpack_from(data)
    if version != _VERSION or found != kind:
        raise NotDecodable("it was made by another version, for another purpose, or on a machine of another byte order")
    body = data[HEADER_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise NotDecodable("its checksum is wrong")
    return body


_BATCH: Final = ord("B")
_VALUE: Final = ord("V")
_KEYS: Final = 0x01
_TIMESTAMPS: Final = 0x02
_PART: Final = 0x04

_HEAD: Final = struct.Struct("<BII")  # flags, rows, bytes of the part's name
_COLUMN: Final = struct.Struct("<BQ")  # tag, bytes


def encode_batch(batch: Batch, *, step: str) -> bytes:
    """``batch`` for another worker of this job.

    Raises:
        CodecError: a key or value can be neither packed nor pickled; names ``step``, key and type.

    >>> decode_batch(encode_batch(Batch([1, 2], keys=["a", "b"]), step="by-name")).keys
    ['a', 'b']
    """
    part = b"" if batch.part is None else batch.part.encode("utf-8", "surrogatepass")
    # What there is as a column in Arrow goes as such, the rest as lists.
    keys = batch.keys if batch.key_column is None else batch.key_column
    timestamps = batch.timestamps if batch.time_column is None else batch.time_column
    values = batch.values if batch.columns is None else batch.columns
    flags = (
        (_KEYS if keys is not None else 0)
        | (_TIMESTAMPS if timestamps is not None else 0)
        | (_PART if batch.part is not None else 0)
    )
    parts = [_HEAD.pack(flags, len(batch), len(part)), part]
    for column in (keys, timestamps, values):
        if column is not None:
            tag, data = _encoded(batch, column, step)
            parts.append(_COLUMN.pack(tag, len(data)))
            parts.append(data)
    return close_frame(_BATCH, parts)


def _encoded(batch: Batch, column: Any, step: str) -> tuple[int, bytes]:
    if type(column) is not list:
        return ARROW, encode_arrow(column)
    try:
        return encode_column(column)
    except NotEncodable as refused:
        raise _blame(batch, column, refused, step) from refused


def decode_batch(data: bytes | memoryview, *, step: str = "") -> Batch:
    """The batch that `encode_batch` made ``data`` of. `CodecError` if it is damaged or something else."""
    try:
        body = open_frame(_BATCH, data)
        flags, rows, part_bytes = _HEAD.unpack_from(body)
        at = _HEAD.size + part_bytes
        part = str(body[_HEAD.size : at], "utf-8", "surrogatepass")
        columns: list[Any] = []
        for there in (flags & _KEYS, flags & _TIMESTAMPS, True):
            column = None
            if there:
                tag, size = _COLUMN.unpack_from(body, at)
                start = at + _COLUMN.size
                at = start + size
                data = body[start:at]
                column = decode_arrow(data, rows) if tag == ARROW else decode_column(tag, data, rows)
            columns.append(column)
    except Exception as error:
        raise _unreadable(error, step) from error
    keys, timestamps, values = columns
    return _batch_of(keys, timestamps, values, part if flags & _PART else None)


def _batch_of(keys: Any, timestamps: Any, values: Any, part: str | None) -> Batch:
    if type(values) is list:
        return Batch(values, keys=keys, timestamps=timestamps, part=part)
    key_column = None if keys is None or type(keys) is list else keys.column(0)
    time_column = None if timestamps is None or type(timestamps) is list else timestamps.column(0)
    return ColumnBatch(
        values,
        keys=keys if key_column is None else None,
        key_column=key_column,
        timestamps=timestamps if time_column is None else None,
        time_column=time_column,
        part=part,
    )


def encode_in_flight(value: Any, *, step: str, key: Any = None) -> bytes:
    """Any one value (keyed state that moves) for another worker of this job. `CodecError` if it has no pickle."""
    try:
        return close_frame(_VALUE, [dump(value)])
    except NotEncodable as refused:
        raise encode_error(refused, step=step, key=key, action="sent to another worker") from refused


def decode_in_flight(data: bytes | memoryview, *, step: str = "", key: Any = None) -> Any:
    """The value that `encode_in_flight` made ``data`` of. `CodecError` if it is damaged or something else."""
    try:
        return load(open_frame(_VALUE, data))
    except Exception as error:
        raise _unreadable(error, step, key) from error


def _blame(batch: Batch, column: list[Any], refused: NotEncodable, step: str) -> CodecError:
    """Which row it was. Only now is a row looked at on its own."""
    index = first_refused(column)
    if index is None:
        return encode_error(refused, step=step, key=None, action="sent to another worker")
    key = batch.keys[index] if batch.keys is not None and column is not batch.keys else None
    return encode_error(
        NotEncodable(type(column[index]), refused.why), step=step, key=key, action="sent to another worker"
    )


def _unreadable(error: Exception, step: str, key: Any = None) -> CodecError:
    why = str(error) if isinstance(error, NotDecodable) else f"{type(error).__name__} while it was put together"
    return decode_error(why, step=step, key=key)
