"""Batches and state between the workers of one job: as fast as possible, and back as exactly the types they were (S8).

A batch is a frame: rows, what columns there are, the part; then per column one byte of tag, its size, its bytes.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.codec import pickles
from malstrom_py.codec.columns import ARROW, decode_arrow, decode_column, encode_arrow, encode_column
from malstrom_py.codec.frames import close_frame, open_frame
from malstrom_py.codec.refusal import Malformed, Refused, cannot_decode, cannot_encode
from malstrom_py.errors import CodecError

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
    except Refused as refused:
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
        return close_frame(_VALUE, [pickles.dump(value)])
    except Refused as refused:
        raise cannot_encode(refused, step=step, key=key, action="sent to another worker") from refused


def decode_in_flight(data: bytes | memoryview, *, step: str = "", key: Any = None) -> Any:
    """The value that `encode_in_flight` made ``data`` of. `CodecError` if it is damaged or something else."""
    try:
        return pickles.load(open_frame(_VALUE, data))
    except Exception as error:
        raise _unreadable(error, step, key) from error


def _blame(batch: Batch, column: list[Any], refused: Refused, step: str) -> CodecError:
    """Which row it was. Only now is a row looked at on its own."""
    index = pickles.first_refused(column)
    if index is None:
        return cannot_encode(refused, step=step, key=None, action="sent to another worker")
    key = batch.keys[index] if batch.keys is not None and column is not batch.keys else None
    return cannot_encode(Refused(type(column[index]), refused.why), step=step, key=key, action="sent to another worker")


def _unreadable(error: Exception, step: str, key: Any = None) -> CodecError:
    why = str(error) if isinstance(error, Malformed) else f"{type(error).__name__} while it was put together"
    return cannot_decode(why, step=step, key=key)
