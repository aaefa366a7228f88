"""Encodes columns of values as the text format of PostgreSQL's ``COPY``.

Rules:
- A value becomes the text that PostgreSQL parses for the type of its column. None is NULL.
- Types that would be stored as something else than they are, such as bytes in a text column, are refused.
- A datetime with a zone is written in UTC; the session's zone is UTC, which is also that of one without a zone.
- Errors name column and type, never a value.
- Columns of Arrow, and lists of plain values of one type, are encoded by Arrow; all others value by value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import ipaddress
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.row_form import python_values
from malstrom_py.errors import CodecError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa

_NULL: Final = "\\N"
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_SLICE_ROWS: Final = 1 << 15
_SLICE_BYTES: Final = 64 << 20
_JOINED_BYTES_MAX: Final = 1 << 30
_BYTES: Final = (bytes, bytearray, memoryview)
_DAY_US: Final = 86_400_000_000
_YEAR_1_US: Final = -62_135_596_800_000_000
_YEAR_10000_US: Final = 253_402_300_800_000_000


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target table. ``type``: as PostgreSQL writes it, without length, such as ``bigint``.

    ``is_given``: whether rows may have it, which generated columns and columns with ``GENERATED ALWAYS AS IDENTITY``
    refuse. ``is_required``: whether a row must have it: it is NOT NULL and has no default.
    """

    name: str
    type: str
    is_given: bool = True
    is_required: bool = False

    @property
    def is_json(self) -> bool:
        return self.type in {"json", "jsonb"}

    @property
    def is_array(self) -> bool:
        return self.type.endswith("[]")

    @property
    def is_bytes(self) -> bool:
        return self.type == "bytea"


def encode(columns: Mapping[TargetColumn, Any], rows: int) -> bytes:
    r"""Return the lines of COPY for columns that are lists of Python values, or arrays of Arrow.

    >>> import pyarrow as pa
    >>> name, price = TargetColumn("name", "text"), TargetColumn("price", "double precision")
    >>> encode({name: ["lamp", None], price: pa.array([2.5, float("nan")])}, 2)
    b'lamp\t2.5\n\\N\tnan\n'
    """
    array_bytes = sum(values.nbytes for values in columns.values() if not isinstance(values, list))
    if rows > 1 and (rows > _SLICE_ROWS or array_bytes > _SLICE_BYTES):
        return _halves(columns, rows)
    try:
        return _joined([_text_column(column, values) for column, values in columns.items()], rows)
    except _TooLargeError:
        return _halves(columns, rows)


def _text_column(column: TargetColumn, values: Any) -> pa.Array:
    return _of_list(column, values) if isinstance(values, list) else _of_arrow(column, values)


class _TooLargeError(Exception):
    """The texts of one column have more than 2 GB, which Arrow cannot hold in one array."""


def _halves(columns: Mapping[TargetColumn, Any], rows: int) -> bytes:
    if rows <= 1:
        raise SinkError("a row has more than 1 GB, which PostgreSQL cannot store")
    middle = rows // 2
    first = {column: values[:middle] for column, values in columns.items()}
    rest = {column: values[middle:] for column, values in columns.items()}
    return encode(first, middle) + encode(rest, rows - middle)


def _array(texts: Sequence[str | None]) -> pa.Array:
    import pyarrow as pa

    array = pa.array(texts, pa.string())
    if isinstance(array, pa.ChunkedArray):
        raise _TooLargeError
    return array


def _joined(texts: Sequence[pa.Array], rows: int) -> bytes:
    """Return one line per row; the texts are escaped."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if sum(text.nbytes for text in texts) > _JOINED_BYTES_MAX:
        raise _TooLargeError
    compute: Any = pc
    join = compute.binary_join_element_wise
    ends = pa.array([""], pa.string()).take(pa.array([0] * rows, pa.int32())) if rows else pa.array([], pa.string())
    texts = [text.fill_null(_NULL) if text.null_count else text for text in texts]
    lines = join(*texts, "\t") if len(texts) > 1 else texts[0]
    return _content(join(lines, ends, "\n"))


def _content(texts: pa.Array) -> bytes:
    """Return the bytes of all texts, one after the other."""
    if not len(texts):
        return b""
    offsets, values = texts.buffers()[1:3]
    numbers = memoryview(offsets).cast("i")
    start, end = numbers[texts.offset], numbers[texts.offset + len(texts)]
    return b"" if values is None or start == end else bytes(memoryview(values)[start:end])


def _escaped(column: TargetColumn, texts: pa.Array) -> pa.Array:
    """Return the texts with escapes; most have none, which is found out by a search for single bytes."""
    import pyarrow.compute as pc

    compute: Any = pc
    content = _content(texts)
    if b"\0" in content:
        raise SinkError(f"column {column.name!r}: a text has a NUL character, which PostgreSQL cannot store: remove it")
    for character, escape in _ESCAPES:
        if character.encode() in content:
            texts = compute.replace_substring(texts, character, escape)
    return texts


# Lists of Python values.


def _of_list(column: TargetColumn, values: list[Any]) -> pa.Array:
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    kind = kinds.pop() if len(kinds) == 1 else None
    direct = kind in (int, float, str, bool) and not column.is_json and not (kind is str and column.is_bytes)
    if direct and not (kind is str and column.is_array):
        try:
            return _of_arrow(column, _array(values) if kind is str else pa.array(values, _arrow_type(kind)))
        except (pa.ArrowInvalid, OverflowError):  # beyond 64 bits
            pass
        except UnicodeEncodeError:
            raise _not_utf8(column) from None
    try:
        texts = _texts(column, values, kind)
    except OverflowError:  # of a datetime in UTC
        raise _beyond(column) from None
    try:
        return _escaped(column, _array(texts))
    except UnicodeEncodeError:
        raise _not_utf8(column) from None


@cache
def _arrow_type(kind: type) -> pa.DataType:
    import pyarrow as pa

    return {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}[kind]


def _texts(column: TargetColumn, values: list[Any], kind: type | None) -> list[str | None]:
    quick = None if kind is None or column.is_json or column.is_array else _converter_of(kind)
    if kind is not None and quick is not None and issubclass(kind, _BYTES) == column.is_bytes:
        if None in values:
            return [None if value is None else quick(value) for value in values]
        return list(map(quick, values))
    return list(map(text_of, repeat(column), values))


def text_of(column: TargetColumn, value: Any) -> str | None:
    r"""Return the text of one value for ``column``, without escapes; None for NULL.

    >>> text_of(TargetColumn("tags", "text[]"), ["a", 'b"c', None])
    '{"a","b\\"c",NULL}'
    """
    if value is None:
        return None
    if column.is_json:
        return value if isinstance(value, str) else _json_of(column, value)
    if column.is_array:
        return value if isinstance(value, str) else _array_of(column, value)
    if column.is_bytes != isinstance(value, _BYTES):
        raise _refused(column, value)
    return _scalar_of(column, value)


def _scalar_of(column: TargetColumn, value: Any) -> str:
    kind: type = type(value)
    convert = _converter_of(kind)
    if convert is None:
        raise _refused(column, value)
    return convert(value)


@cache
def _converter_of(kind: type) -> Callable[[Any], str] | None:
    return next((_TEXTS[base] for base in kind.__mro__ if base in _TEXTS), None)


def _array_of(column: TargetColumn, value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        raise _refused(column, value)
    return "{" + ",".join(_item_of(column, item) for item in value) + "}"


def _item_of(column: TargetColumn, item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, (list, tuple)):
        return _array_of(column, item)
    of_items = TargetColumn(column.name, column.type.removesuffix("[]"))
    if of_items.is_json and not isinstance(item, str):
        text = _json_of(column, item)
    elif of_items.is_bytes != isinstance(item, _BYTES):
        raise _refused(column, item)
    else:
        text = _scalar_of(column, item)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json_of(column: TargetColumn, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_in_json)
    except (ValueError, RecursionError):
        raise SinkError(f"column {column.name!r}: JSON cannot hold NaN, infinity or endless nesting") from None
    except TypeError:
        raise _refused(column, value) from None


def _in_json(value: Any) -> Any:
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    raise TypeError


def _refused(column: TargetColumn, value: Any) -> SinkError:
    return SinkError(
        f"column {column.name!r} of type {column.type} takes no {type(value).__name__}: convert it in a step before"
    )


def _not_utf8(column: TargetColumn) -> SinkError:
    return SinkError(f"column {column.name!r}: a text is not valid Unicode (a lone surrogate): repair it before")


def _of_datetime(value: dt.datetime) -> str:
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC)
    return value.isoformat()


def _of_timedelta(value: dt.timedelta) -> str:
    return f"{value.days} days {value.seconds}.{value.microseconds:06d} seconds"


def _of_bytes(value: bytes | bytearray | memoryview) -> str:
    return "\\x" + value.hex()


def _of_bool(value: bool) -> str:
    return "true" if value else "false"


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    bool: _of_bool,
    int: int.__repr__,
    float: float.__repr__,
    str: str.__str__,
    decimal.Decimal: decimal.Decimal.__str__,
    **dict.fromkeys(_BYTES, _of_bytes),
    dt.datetime: _of_datetime,
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: _of_timedelta,
    uuid.UUID: uuid.UUID.__str__,
    **dict.fromkeys((ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network), str),
}
"""How a value of a class, or of a subclass such as an ``IntEnum``, becomes text."""


# Columns of Arrow.


def _of_arrow(column: TargetColumn, values: pa.Array) -> pa.Array:
    import pyarrow as pa

    types = pa.types
    kind = values.type
    if types.is_dictionary(kind):
        return _of_arrow(column, values.dictionary_decode())
    if types.is_null(kind):
        return values.cast(pa.string())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        if column.is_bytes:
            raise _refused(column, "")
        return _escaped(column, values if types.is_string(kind) else values.cast(pa.string()))
    if not (column.is_json or column.is_array or column.is_bytes):
        text = _by_cast(column, values)
        if text is not None:
            return text
    try:
        rows = python_values(values, f"column {column.name!r}")
    except CodecError as error:
        raise SinkError(str(error)) from None
    return _of_list(column, rows)


def _by_cast(column: TargetColumn, values: pa.Array) -> pa.Array | None:
    """Return the texts of types that Arrow writes as PostgreSQL reads them; None for others."""
    import pyarrow as pa

    types, kind = pa.types, values.type
    if types.is_float16(kind):
        values = values.cast(pa.float32())
    elif types.is_timestamp(kind):
        return _of_timestamps(column, values)
    elif types.is_time(kind):
        values = _in_microseconds(column, values, pa.time64("us"))
    elif types.is_date64(kind):
        return None
    elif types.is_date32(kind):
        if not _is_within(values.view(pa.int32()).cast(pa.int64()), _YEAR_1_US // _DAY_US, _YEAR_10000_US // _DAY_US):
            raise _beyond(column)
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)):
        return None
    return values.cast(pa.string())


def _of_timestamps(column: TargetColumn, values: pa.Array) -> pa.Array:
    """Return timestamps in UTC, in microseconds."""
    import pyarrow as pa

    times = _in_microseconds(column, values, pa.timestamp("us", values.type.tz))
    if not _is_within(times.view(pa.int64()), _YEAR_1_US, _YEAR_10000_US):
        raise _beyond(column)
    return times.view(pa.timestamp("us")).cast(pa.string())


def _in_microseconds(column: TargetColumn, values: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        raise SinkError(
            f"column {column.name!r} has times finer than a microsecond, or beyond 64 bits of them: cast it before"
        ) from None


def _is_within(numbers: pa.Array, first: int, beyond: int) -> bool:
    import pyarrow.compute as pc

    ends = pc.call_function("min_max", [numbers]).as_py()
    return ends["min"] is None or (first <= ends["min"] and ends["max"] < beyond)


def _beyond(column: TargetColumn) -> SinkError:
    return SinkError(f"column {column.name!r} has dates beyond the years 1 to 9999: correct them in a step before")
