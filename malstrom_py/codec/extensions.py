"""The extension types of the stored form: their codes, and the conversion of each value to bytes and back.

A value without contents (a date, a Decimal) is an extension that holds its bytes. A value with contents (a tuple, a
set, an object) is an array whose first item is an empty extension, its *mark*: so msgpack counts the depth of nesting,
in C, and no byte is copied once per level. Codes are part of the stored form: never change or reuse one.

A time keeps its zone and its fold, and so its instant and its wall clock. A zone is a `zoneinfo.ZoneInfo`, stored by
name, or a `datetime.timezone`, stored by offset and name. numpy is imported only when a value of numpy is converted.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import struct
import uuid
import zoneinfo
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.codec.encoding_errors import NotDecodable, NotEncodable

if TYPE_CHECKING:
    import numpy as np

_DATE: Final = struct.Struct("<HBB")
_TIME: Final = struct.Struct("<BBBIB")  # hour, minute, second, microsecond, fold
_DATETIME: Final = struct.Struct("<HBBBBBIB")
_DELTA: Final = struct.Struct("<iII")
_OFFSET: Final = struct.Struct("<q")
_MICROSECOND: Final = dt.timedelta(microseconds=1)
# zoneinfo makes a path of the name, so a name from stored data must match exactly.
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,31}){0,2}")


def _time_to_bytes(value: dt.time) -> bytes:
    return _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold) + _tzinfo_to_bytes(value)


def _time_from_bytes(data: bytes) -> dt.time:
    hour, minute, second, microsecond, fold = _TIME.unpack_from(data)
    return dt.time(hour, minute, second, microsecond, _tzinfo_from_bytes(data[_TIME.size :]), fold=fold)


def _datetime_to_bytes(value: dt.datetime) -> bytes:
    return _DATETIME.pack(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold
    ) + _tzinfo_to_bytes(value)


def _datetime_from_bytes(data: bytes) -> dt.datetime:
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack_from(data)
    zone = _tzinfo_from_bytes(data[_DATETIME.size :])
    return dt.datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _timezone_to_bytes(value: dt.timezone) -> bytes:
    """Encode a timezone: the offset in microseconds, then the name if one was given."""
    given = value.__getinitargs__()  # type: ignore[attr-defined]  # as pickle does: (offset,) or (offset, name)
    name: str = given[1] if len(given) > 1 else ""
    # "N" distinguishes an empty name from none.
    return _OFFSET.pack(given[0] // _MICROSECOND) + (
        b"N" + name.encode("utf-8", "surrogatepass") if len(given) > 1 else b""
    )


def _timezone_from_bytes(data: bytes) -> dt.timezone:
    offset = dt.timedelta(microseconds=_OFFSET.unpack_from(data)[0])
    name = data[_OFFSET.size :]
    return dt.timezone(offset, name[1:].decode("utf-8", "surrogatepass")) if name else dt.timezone(offset)


def _zone_to_bytes(value: zoneinfo.ZoneInfo) -> bytes:
    if value.key is None or not _ZONE.fullmatch(value.key):
        raise NotEncodable(zoneinfo.ZoneInfo, "its zone has no name in the tz database. Use ZoneInfo('Area/City')")
    return value.key.encode()


def _zone_from_bytes(data: bytes) -> zoneinfo.ZoneInfo:
    """Decode the result of `_zone_to_bytes`. `NotDecodable` if this machine does not know the zone."""
    name = data.decode()
    if not _ZONE.fullmatch(name):
        raise NotDecodable("a time zone has an illegal name")
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise NotDecodable(f"this machine does not know the time zone {name}; install tzdata") from None


def _tzinfo_to_bytes(value: dt.datetime | dt.time) -> bytes:
    zone = value.tzinfo
    if zone is None:
        return b""
    if type(zone) is dt.timezone:
        return b"O" + _timezone_to_bytes(zone)
    if type(zone) is zoneinfo.ZoneInfo:
        return b"Z" + _zone_to_bytes(zone)
    raise NotEncodable(
        type(value), f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}. Use zoneinfo.ZoneInfo"
    )


def _tzinfo_from_bytes(data: bytes) -> dt.tzinfo | None:
    if not data:
        return None
    if data[0] == ord("O"):
        return _timezone_from_bytes(data[1:])
    if data[0] == ord("Z"):
        return _zone_from_bytes(data[1:])
    raise NotDecodable("a time zone of an unknown kind")


# Numbers, bool, datetime64 and timedelta64 only: no objects, no records, no type whose width depends on the machine.
_DTYPE: Final = re.compile(
    r"\|b1|[|<>]i1|[|<>]u1|[<>](?:[iu][248]|f[248]|c(?:8|16)|[mM]8(?:\[[0-9]{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
_COUNT: Final = struct.Struct("<B")
_DIMENSIONS_MAX: Final = 32


def _scalar_to_bytes(value: Any) -> bytes:
    """Encode a numpy scalar: the dtype, then its bytes; text and bytes unchanged."""
    import numpy as np

    if type(value) is np.str_:
        # Use the builtin's method: numpy's drops trailing NUL characters.
        return _named("U") + str.encode(value, "utf-8", "surrogatepass")
    if type(value) is np.bytes_:
        return _named("S") + b"".join((value,))
    dtype = _dtype_to_store(value)
    if not isinstance(value, np.generic) or dtype.type is not type(value):
        raise NotEncodable(type(value), "its width depends on the machine. Store a numpy.int64 or numpy.float64")
    return _named(dtype.str) + value.tobytes()


def _scalar_from_bytes(data: bytes) -> Any:
    import numpy as np

    name, raw = _split_name(data)
    if name == "U":
        return np.str_(raw.decode("utf-8", "surrogatepass"))
    if name == "S":
        return np.bytes_(raw)
    values = _from_buffer(raw, name)
    if len(values) != 1:
        raise NotDecodable("a numpy scalar has a different size than its type")
    return values[0]


def _array_to_bytes(value: np.ndarray[Any, Any]) -> bytes:
    """Encode a numpy array: the dtype, the shape, then the items in C order."""
    if value.ndim > _DIMENSIONS_MAX:
        raise NotEncodable(type(value), f"it has more than {_DIMENSIONS_MAX} dimensions")
    shape = struct.pack(f"<{value.ndim}Q", *value.shape)
    return _named(_dtype_to_store(value).str) + _COUNT.pack(value.ndim) + shape + value.tobytes()


def _array_from_bytes(data: bytes) -> np.ndarray[Any, Any]:
    """Decode the result of `_array_to_bytes` to a writable array in C order."""
    name, rest = _split_name(data)
    count = _COUNT.unpack_from(rest)[0]
    if count > _DIMENSIONS_MAX:
        raise NotDecodable("an array has too many dimensions")
    shape = struct.unpack_from(f"<{count}Q", rest, 1)
    return _from_buffer(rest[1 + 8 * count :], name).reshape(shape).copy()


def _dtype_to_store(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = value.dtype
    if not _DTYPE.fullmatch(dtype.str):
        raise NotEncodable(type(value), f"arrays of numbers, bool and times can be stored, not of dtype {dtype.str}")
    return _dtype(dtype.str)


def _named(name: str) -> bytes:
    return _COUNT.pack(len(name)) + name.encode()


def _split_name(data: bytes) -> tuple[str, bytes]:
    end = 1 + _COUNT.unpack_from(data)[0]
    return data[1:end].decode("ascii"), data[end:]


@lru_cache(maxsize=256)
def _dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if not _DTYPE.fullmatch(name):
        raise NotDecodable("an array of an unknown type")
    return np.dtype(name)


def _from_buffer(raw: bytes, name: str) -> np.ndarray[Any, Any]:
    import numpy as np

    # numpy reads any byte as a bool and then compares it wrongly.
    if name == "|b1" and raw.strip(b"\x00\x01"):
        raw = bytes(map(bool, raw))
    return np.frombuffer(raw, _dtype(name))


TUPLE: Final = 1
SET: Final = 2
FROZENSET: Final = 3
OBJECT: Final = 4
MARKS: Final = frozenset({TUPLE, SET, FROZENSET, OBJECT})

BIG_INT: Final = 16
COMPLEX: Final = 17
DECIMAL: Final = 18
UUID: Final = 19
DATE: Final = 20
TIME: Final = 21
DATETIME: Final = 22
TIMEDELTA: Final = 23
TIMEZONE: Final = 24
ZONE: Final = 25
NUMPY_SCALAR: Final = 26
NUMPY_ARRAY: Final = 27

_COMPLEX: Final = struct.Struct("<dd")
# Exact, independent of the thread's context; a malformed number raises instead of becoming NaN.
_DECIMALS: Final = decimal.Context(traps=[decimal.InvalidOperation])


_CODECS: Final[list[tuple[int, type, Callable[[Any], bytes], Callable[[bytes], Any]]]] = [
    # Only ints beyond 64 bits: msgpack packs the others itself.
    (
        BIG_INT,
        int,
        lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
        lambda data: int.from_bytes(data, "little", signed=True),
    ),
    (
        COMPLEX,
        complex,
        lambda value: _COMPLEX.pack(value.real, value.imag),
        lambda data: complex(*_COMPLEX.unpack(data)),
    ),
    (
        DECIMAL,
        decimal.Decimal,
        lambda value: str(value).encode(),
        lambda data: decimal.Decimal(data.decode("ascii"), _DECIMALS),
    ),
    (UUID, uuid.UUID, lambda value: value.bytes, lambda data: uuid.UUID(bytes=data)),
    (
        DATE,
        dt.date,
        lambda value: _DATE.pack(value.year, value.month, value.day),
        lambda data: dt.date(*_DATE.unpack(data)),
    ),
    (TIME, dt.time, _time_to_bytes, _time_from_bytes),
    (DATETIME, dt.datetime, _datetime_to_bytes, _datetime_from_bytes),
    (
        TIMEDELTA,
        dt.timedelta,
        lambda value: _DELTA.pack(value.days, value.seconds, value.microseconds),
        lambda data: dt.timedelta(*_DELTA.unpack(data)),
    ),
    (TIMEZONE, dt.timezone, _timezone_to_bytes, _timezone_from_bytes),
    (ZONE, zoneinfo.ZoneInfo, _zone_to_bytes, _zone_from_bytes),
]

TO_BYTES: Final = {kind: (code, encode) for code, kind, encode, _ in _CODECS}
"""Exact type -> its code and its encoder."""

_FROM_BYTES: Final[dict[int, Callable[[bytes], Any]]] = {
    **{code: decode for code, _, _, decode in _CODECS},
    NUMPY_SCALAR: _scalar_from_bytes,
    NUMPY_ARRAY: _array_from_bytes,
}


def value_of(code: int, data: bytes) -> Any:
    """Decode the contents of an extension.

    >>> value_of(DECIMAL, b"1.50")
    Decimal('1.50')
    """
    decode = _FROM_BYTES.get(code)
    if decode is None:
        raise NotDecodable(f"extension type {code} is unknown")
    return decode(data)


def extension_of(value: Any) -> tuple[int, bytes] | None:
    r"""Return the code and the bytes of a value, or None if its type has no extension.

    >>> extension_of(dt.date(2013, 1, 2))
    (20, b'\xdd\x07\x01\x02')
    """
    kind = type(value)
    found = TO_BYTES.get(kind)
    if found is not None:
        return found[0], found[1](value)
    if kind.__module__ == "numpy":
        import numpy as np

        if kind is np.ndarray:
            return NUMPY_ARRAY, _array_to_bytes(value)
        return NUMPY_SCALAR, _scalar_to_bytes(value)
    return None
