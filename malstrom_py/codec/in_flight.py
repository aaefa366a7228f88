"""Batches and state between the workers of one job (S8): as fast as possible, decoded to the exact types.

Each message is a frame: version, byte order, kind and checksum, then the contents. A batch has flags for its columns,
the number of rows and the part; then for each column a tag, its size and its bytes. A column in Arrow is an Arrow IPC
stream; after the columns comes their row form, unless the rows are dicts. A column of one plain type is packed. So are
the fields of values that are tuples or dicts of plain values, field by field, where there is the accelerator. Every
other value is pickled: by pickle 5, or by cloudpickle where pickle fails (lambdas, classes made inside functions).
``python -m bench.micro.codec`` measures it.

Rule: a frame may contain pickle, so the checksum is verified first. The checksum finds damage, not malice: the workers
of one job trust each other, and the transport rejects every other sender. Nothing here is stored.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import xxhash

from malstrom_py import accelerator
from malstrom_py.codec.encoding_errors import NotDecodable, NotEncodable, decode_error, encode_error
from malstrom_py.data.batch import Batch, ColumnBatch, place_of
from malstrom_py.data.row_form import DICTS, RowForm
from malstrom_py.errors import CodecError
from malstrom_py.errors.text import describe_error

if TYPE_CHECKING:
    import pyarrow as pa

_PROTOCOL: Final = 5


def dump(value: Any) -> bytes:
    """Pickle ``value``. `NotEncodable` if both pickle and cloudpickle fail."""
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception:
        try:
            return _by_cloudpickle(value)
        except Exception as error:
            why = f"it cannot be pickled ({describe_error(error)}). Send its fields instead of the object"
            raise NotEncodable(type(value), why) from error


def _by_cloudpickle(value: Any) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it is not annotated
        def reducer_override(self, obj: Any) -> Any:
            # cloudpickle would send it as bytes, and decoding must restore the type.
            if type(obj) is memoryview:
                raise TypeError("a memoryview would come back as bytes")
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer, _PROTOCOL).dump(value)
    return buffer.getvalue()


def load(data: bytes | memoryview) -> Any:
    """Unpickle the result of `dump`. Pickle can run code: only for data from a worker of the same job."""
    return pickle.loads(data)


def first_refused(values: Sequence[Any]) -> int | None:
    """Return the index of the first of ``values`` that cannot be pickled alone, or None."""
    for index, value in enumerate(values):
        try:
            dump(value)
        except NotEncodable:
            return index
    return None


PICKLED: Final = ord("p")
INTS: Final = ord("q")  # int64, native byte order
FLOATS: Final = ord("d")  # float64, native byte order
STRINGS: Final = ord("s")  # UTF-8, separated by NUL
ARROW: Final = ord("a")  # an Arrow IPC stream of one record batch
FIELDS: Final = ord("f")  # tuples or dicts as columns of their fields
_PLACED: Final = ord("c")  # one of the columns of the values, by its place
_KEYS_TOO: Final = ord("k")  # a field that is the keys

_NUL: Final = "\0"


def pack_column(column: list[Any]) -> tuple[int, bytes] | None:
    """Return the tag and the bytes of a column of one plain type; None for any other column.

    >>> pack_column([1, True]) is None
    True
    """
    return _packed(column, _kind_of(column))


def _kind_of(column: list[Any]) -> type | None:
    """Return the one exact type of all values. A bool in a column of ints must be decoded to a bool."""
    native = accelerator.rows()
    if native is not None:
        return native.kind(column)
    if not column:
        return None
    kind = type(column[0])
    return kind if list(map(type, column)).count(kind) == len(column) else None


def _packed(column: list[Any], kind: type | None) -> tuple[int, bytes] | None:
    rows = len(column)
    if kind is str:
        text = _NUL.join(column)
        if text.count(_NUL) == rows - 1:
            return STRINGS, text.encode("utf-8", "surrogatepass")
    elif kind is float:
        return FLOATS, struct.pack(f"{rows}d", *column)
    elif kind is int:
        with suppress(struct.error):  # an int is beyond 64 bits
            return INTS, struct.pack(f"{rows}q", *column)
    return None


def encode_column(column: list[Any]) -> tuple[int, bytes]:
    r"""Return the tag of a column and its bytes. `NotEncodable` if a value can be neither packed nor pickled.

    >>> encode_column(["UA", "B6"])
    (115, b'UA\x00B6')
    """
    packed = pack_column(column)
    return (PICKLED, dump(column)) if packed is None else packed


def decode_column(tag: int, data: memoryview, rows: int) -> list[Any]:
    """Decode the result of `encode_column`, a column of ``rows`` rows."""
    return _of_length(rows, load(data)) if tag == PICKLED else unpack_column(tag, data, rows)


def unpack_column(tag: int, data: memoryview, rows: int) -> list[Any]:
    """Decode the result of `pack_column`, a column of ``rows`` rows. Never unpickles."""
    if tag == STRINGS:
        return _of_length(rows, str(data, "utf-8", "surrogatepass").split(_NUL))
    if tag == INTS:
        return _of_length(rows, data.cast("q").tolist())
    if tag == FLOATS:
        return _of_length(rows, list(struct.unpack(f"{len(data) // 8}d", data)))
    raise NotDecodable(f"columns of kind {tag} are unknown")


def _of_length(rows: int, column: Any) -> list[Any]:
    if type(column) is not list or len(column) != rows:
        raise NotDecodable("a column has a different length than its batch")
    return column


def encode_arrow(column: pa.RecordBatch | pa.Array) -> memoryview:
    """Encode a record batch, or one column, as an Arrow IPC stream."""
    import pyarrow as pa

    batch = column if isinstance(column, pa.RecordBatch) else pa.RecordBatch.from_arrays([column], names=[""])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(stream.getvalue())


def decode_arrow(data: memoryview, rows: int) -> pa.RecordBatch:
    """Decode the result of `encode_arrow`; a single column is decoded to a record batch of one column."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        batch = reader.read_next_batch()
    batch.validate()
    if batch.num_rows != rows:
        raise NotDecodable("a column has a different length than its batch")
    return batch


_VERSION: Final = 0x23 if sys.byteorder == "little" else 0x24
_HEADER: Final = struct.Struct("<BBQ")  # version and byte order, kind of contents, checksum of the contents

HEADER_BYTES: Final = _HEADER.size


def close_frame(kind: int, parts: Sequence[bytes | memoryview]) -> bytes:
    """Return a frame that contains ``parts``, joined.

    >>> open_frame(7, close_frame(7, [b"ab", b"c"])).tobytes()
    b'abc'
    """
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    return b"".join((_HEADER.pack(_VERSION, kind, checksum.intdigest()), *parts))


def open_frame(kind: int, frame: bytes | memoryview) -> memoryview:
    """Return the contents of a frame, without a copy. `NotDecodable` if the header or the checksum is wrong."""
    data = memoryview(frame)
    if len(data) < HEADER_BYTES:
        raise NotDecodable("it ends too soon")
    version, found, checksum = _HEADER.unpack_from(data)
    if version != _VERSION or found != kind:
        raise NotDecodable("it is of another version or kind, or comes from a machine with another byte order")
    body = data[HEADER_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise NotDecodable("its checksum is wrong")
    return body


_BATCH: Final = ord("B")
_VALUE: Final = ord("V")
_KEYS: Final = 0x01
_TIMESTAMPS: Final = 0x02
_PART: Final = 0x04
_FORM: Final = 0x08
_COMPUTED: Final = 0x10

_HEAD: Final = struct.Struct("<BII")  # flags, rows, bytes of the part's name
_COLUMN: Final = struct.Struct("<BQ")  # tag, bytes
_PLACE: Final = struct.Struct("<I")
_NAMES_BYTES: Final = 4096


def encode_fields(rows: list[Any], keys: list[Any] | None) -> bytes | None:
    """Encode tuples or dicts of plain values field by field; a field that is ``keys`` is not repeated.

    Return None for other rows, and without the accelerator. The form: the size of the pickled names of dicts, and the
    names; then of each field its tag, its size and its bytes.
    """
    native = accelerator.rows()
    found = None if native is None else native.fields(rows, keys)
    if found is None:
        return None
    names, fields = found
    named = b"" if names is None else dump(names)
    parts = [_PLACE.pack(len(named)), named]
    for kind, column in fields:
        if column is None:
            parts.append(_COLUMN.pack(_KEYS_TOO, 0))
        else:
            tag, data = _packed(column, kind) or (PICKLED, dump(column))
            parts += (_COLUMN.pack(tag, len(data)), data)
    return b"".join(parts)


def decode_fields(data: memoryview, rows: int, keys: list[Any] | None) -> list[Any]:
    """Decode the result of `encode_fields`, ``rows`` rows with ``keys``."""
    (size,) = _PLACE.unpack_from(data)
    at = _PLACE.size + size
    names = _names(bytes(data[_PLACE.size : at])) if size else None
    columns = list[list[Any]]()
    while at < len(data):
        tag, size = _COLUMN.unpack_from(data, at)
        start = at + _COLUMN.size
        at = start + size
        columns.append((keys or []) if tag == _KEYS_TOO else decode_column(tag, data[start:at], rows))
    if not columns or set(map(len, columns)) != {rows}:
        raise NotDecodable("a field has a different length than its batch")
    native = accelerator.rows()
    if native is not None:
        return native.join(names, tuple(columns))
    tuples = zip(*columns, strict=True)
    return list(tuples) if names is None else [dict(zip(names, row, strict=True)) for row in tuples]


def _names(data: bytes) -> tuple[str, ...]:
    """Return the names of dicts. Short ones are kept, as jobs have few; names that are data are not."""
    return _known_names(data) if len(data) <= _NAMES_BYTES else tuple(load(data))


@lru_cache(maxsize=64)
def _known_names(data: bytes) -> tuple[str, ...]:
    return tuple(load(data))


def encode_batch(batch: Batch, *, step: str) -> bytes:
    """Encode ``batch`` for another worker of this job.

    Raises:
        CodecError: a key or value can be neither packed nor pickled; names ``step``, key and type.

    >>> decode_batch(encode_batch(Batch([1, 2], keys=["a", "b"]), step="by-name")).keys
    ['a', 'b']
    """
    part = b"" if batch.part is None else batch.part.encode("utf-8", "surrogatepass")
    # Columns in Arrow are encoded as Arrow, others as lists.
    keys = batch.keys if batch.key_column is None else batch.key_column
    timestamps = batch.timestamps if batch.time_column is None else batch.time_column
    values = batch.values if batch.columns is None else batch.columns
    flags = (
        (_KEYS if keys is not None else 0)
        | (_TIMESTAMPS if timestamps is not None else 0)
        | (_PART if batch.part is not None else 0)
        | (_FORM if isinstance(batch, ColumnBatch) and batch.form is not DICTS else 0)
        | (_COMPUTED if isinstance(batch, ColumnBatch) and batch.computed else 0)
    )
    parts: list[bytes | memoryview] = [_HEAD.pack(flags, len(batch), len(part)), part]
    encoded = [_encoded(batch, column, step) for column in (keys, timestamps) if column is not None]
    fields = encode_fields(values, batch.keys) if type(values) is list else None
    encoded.append(_encoded(batch, values, step) if fields is None else (FIELDS, fields))
    for tag, data in encoded:
        parts += (_COLUMN.pack(tag, len(data)), data)
    if isinstance(batch, ColumnBatch) and batch.form is not DICTS:
        parts.append(_dumped_form(batch.form))
    return close_frame(_BATCH, parts)


@lru_cache(maxsize=64)
def _dumped_form(form: RowForm) -> bytes:
    return dump(form)


@lru_cache(maxsize=64)
def _loaded_form(data: bytes) -> RowForm:
    form: RowForm = load(data)
    return form


def _encoded(batch: Batch, column: Any, step: str) -> tuple[int, bytes | memoryview]:
    if type(column) is not list:
        columns = batch.columns
        place = None if columns is None or column is columns else place_of(column, columns)
        return (ARROW, encode_arrow(column)) if place is None else (_PLACED, _PLACE.pack(place))
    try:
        return encode_column(column)
    except NotEncodable as refused:
        raise _blame(batch, column, refused, step) from refused


def decode_batch(data: bytes | memoryview, *, step: str = "") -> Batch:
    """Decode the result of `encode_batch`. `CodecError` if ``data`` is damaged or not a batch."""
    try:
        body = open_frame(_BATCH, data)
        flags, rows, part_bytes = _HEAD.unpack_from(body)
        at = _HEAD.size + part_bytes
        part = str(body[_HEAD.size : at], "utf-8", "surrogatepass")
        columns: list[Any] = []
        for present in (flags & _KEYS, flags & _TIMESTAMPS, True):
            column = None
            if present:
                tag, size = _COLUMN.unpack_from(body, at)
                start = at + _COLUMN.size
                at = start + size
                column = _decoded(tag, body[start:at], rows, columns)
            columns.append(column)
        form = _loaded_form(bytes(body[at:])) if flags & _FORM else DICTS
        return _batch_of(columns, part if flags & _PART else None, form, computed=bool(flags & _COMPUTED))
    except Exception as error:
        raise _unreadable(error, step) from error


def _decoded(tag: int, data: memoryview, rows: int, before: list[Any]) -> Any:
    """Return a column as a list, a record batch of one column, or its place among the values.

    ``before``: the columns before it, of which the first is the keys.
    """
    if tag == ARROW:
        return decode_arrow(data, rows)
    if tag == FIELDS:
        return decode_fields(data, rows, before[0])
    return _PLACE.unpack(data)[0] if tag == _PLACED else decode_column(tag, data, rows)


def _batch_of(columns: Sequence[Any], part: str | None, form: RowForm, *, computed: bool) -> Batch:
    keys, timestamps, values = columns
    if type(values) is list:
        return Batch(values, keys=keys, timestamps=timestamps, part=part)
    return ColumnBatch(
        values,
        keys=keys if type(keys) is list else None,
        key_column=_column_of(keys, values),
        timestamps=timestamps if type(timestamps) is list else None,
        time_column=_column_of(timestamps, values),
        part=part,
        form=form,
        computed=computed,
    )


def _column_of(decoded: Any, values: pa.RecordBatch) -> pa.Array | None:
    if decoded is None or type(decoded) is list:
        return None
    return values.column(decoded) if type(decoded) is int else decoded.column(0)


def encode_in_flight(value: Any, *, step: str, key: Any = None) -> bytes:
    """Encode one value (such as keyed state that moves) for another worker. `CodecError` if it cannot be pickled."""
    try:
        return close_frame(_VALUE, [dump(value)])
    except NotEncodable as refused:
        raise encode_error(refused, step=step, key=key, action="sent to another worker") from refused


def decode_in_flight(data: bytes | memoryview, *, step: str = "", key: Any = None) -> Any:
    """Decode the result of `encode_in_flight`. `CodecError` if ``data`` is damaged or not a value."""
    try:
        return load(open_frame(_VALUE, data))
    except Exception as error:
        raise _unreadable(error, step, key) from error


def _blame(batch: Batch, column: list[Any], refused: NotEncodable, step: str) -> CodecError:
    """Return the error that names the row; rows are pickled one by one only here."""
    index = first_refused(column)
    if index is None:
        return encode_error(refused, step=step, key=None, action="sent to another worker")
    key = batch.keys[index] if batch.keys is not None and column is not batch.keys else None
    return encode_error(
        NotEncodable(type(column[index]), refused.why), step=step, key=key, action="sent to another worker"
    )


def _unreadable(error: Exception, step: str, key: Any = None) -> CodecError:
    why = str(error) if isinstance(error, NotDecodable) else f"decoding it raised {describe_error(error)}"
    return decode_error(why, step=step, key=key)
