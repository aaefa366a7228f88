"""The extension types of the stored form: their codes, and how each becomes bytes and comes back.

Dates, times and time zones as bytes, and back: zone and fold are kept, so a time comes back as the same instant
and the same wall clock. Zones are `zoneinfo.ZoneInfo` by name, or `datetime.timezone` by offset and name.

Scalars and arrays of numpy as bytes, and back. numpy is imported only where there is a value of it.

The extension types of the stored form: their codes, and how values of one piece become bytes and come back.

A value in one piece (a date, a Decimal) is an extension with its bytes. A value made of others (a tuple, a set, an
object) is an array whose first item is an empty extension, its *mark*: so nesting stays in msgpack, where C counts
its depth, and no byte is copied once per level. Codes are part of the stored form: never change or reuse one.
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
# A name from data becomes part of a path, so it must look like a name and nothing else.
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,31}){0,2}")


def date_to_bytes(value: dt.date) -> bytes:
    """Four bytes: year, month, day."""
    return _DATE.pack(value.year, value.month, value.day)


def date_from_bytes(data: bytes) -> dt.date:
    """The inverse of `date_to_bytes`."""
    return dt.date(*_DATE.unpack(data))


def time_to_bytes(value: dt.time) -> bytes:
    """Wall clock and fold, then the zone."""
    return _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold) + _zone_to_bytes(value)


def time_from_bytes(data: bytes) -> dt.time:
    """The inverse of `time_to_bytes`."""
    hour, minute, second, microsecond, fold = _TIME.unpack_from(data)
    return dt.time(hour, minute, second, microsecond, _zone_from_bytes(data[_TIME.size :]), fold=fold)


def datetime_to_bytes(value: dt.datetime) -> bytes:
    """Date, wall clock and fold, then the zone."""
    return _DATETIME.pack(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold
    ) + _zone_to_bytes(value)


def datetime_from_bytes(data: bytes) -> dt.datetime:
    """The inverse of `datetime_to_bytes`."""
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack_from(data)
    zone = _zone_from_bytes(data[_DATETIME.size :])
    return dt.datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def timedelta_to_bytes(value: dt.timedelta) -> bytes:
    """Days, seconds, microseconds."""
    return _DELTA.pack(value.days, value.seconds, value.microseconds)


def timedelta_from_bytes(data: bytes) -> dt.timedelta:
    """The inverse of `timedelta_to_bytes`."""
    return dt.timedelta(*_DELTA.unpack(data))


def timezone_to_bytes(value: dt.timezone) -> bytes:
    """The offset, in microseconds, then the name where it has one of its own."""
    given = value.__getinitargs__()  # type: ignore[attr-defined]  # what pickle uses: (offset,) or (offset, name)
    name: str = given[1] if len(given) > 1 else ""
    # An empty name is a name too: the mark tells them apart.
    return _OFFSET.pack(given[0] // _MICROSECOND) + (
        b"N" + name.encode("utf-8", "surrogatepass") if len(given) > 1 else b""
    )


def timezone_from_bytes(data: bytes) -> dt.timezone:
    """The inverse of `timezone_to_bytes`."""
    offset = dt.timedelta(microseconds=_OFFSET.unpack_from(data)[0])
    name = data[_OFFSET.size :]
    return dt.timezone(offset, name[1:].decode("utf-8", "surrogatepass")) if name else dt.timezone(offset)


def zone_to_bytes(value: zoneinfo.ZoneInfo) -> bytes:
    """Its name."""
    if value.key is None or not _ZONE.fullmatch(value.key):
        raise NotEncodable(zoneinfo.ZoneInfo, "its zone has no name of the tz database. Use ZoneInfo('Area/City')")
    return value.key.encode()


def zone_from_bytes(data: bytes) -> zoneinfo.ZoneInfo:
    """The inverse of `zone_to_bytes`; `NotDecodable` if this machine does not know the zone."""
    name = data.decode()
    if not _ZONE.fullmatch(name):
        raise NotDecodable("a time zone has an illegal name")
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise NotDecodable(f"this machine does not know the time zone {name}; install tzdata") from None


def _zone_to_bytes(value: dt.datetime | dt.time) -> bytes:
    zone = value.tzinfo
    if zone is None:
        return b""
    if type(zone) is dt.timezone:
        return b"O" + timezone_to_bytes(zone)
    if type(zone) is zoneinfo.ZoneInfo:
        return b"Z" + zone_to_bytes(zone)
    raise NotEncodable(
        type(value), f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}. Use zoneinfo.ZoneInfo"
    )


def _zone_from_bytes(data: bytes) -> dt.tzinfo | None:
    if not data:
        return None
    if data[0] == ord("O"):
        return timezone_from_bytes(data[1:])
    if data[0] == ord("Z"):
        return zone_from_bytes(data[1:])
    raise NotDecodable("a time zone of an unknown kind")


# Numbers, bool, datetime64 and timedelta64 only: neither objects nor records, and nothing whose width differs from
# machine to machine.
_DTYPE: Final = re.compile(
    r"\|b1|[|<>]i1|[|<>]u1|[<>](?:[iu][248]|f[248]|c(?:8|16)|[mM]8(?:\[[0-9]{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
_COUNT: Final = struct.Struct("<B")
_DIMENSIONS_MAX: Final = 32


def is_numpy(kind: type) -> bool:
    """Whether ``kind`` says it is of numpy; `scalar_to_bytes` and `array_to_bytes` look closer.

    >>> is_numpy(int)
    False
    """
    return kind.__module__ == "numpy"


def is_array(kind: type) -> bool:
    """Whether ``kind`` is numpy's array, and no subclass of it."""
    import numpy as np

    return kind is np.ndarray


def scalar_to_bytes(value: Any) -> bytes:
    """The dtype, then the bytes of a numpy scalar; text and bytes as themselves."""
    import numpy as np

    if type(value) is np.str_:
        # The methods of the builtin: numpy's own drop NUL characters at the end.
        return _named("U") + str.encode(value, "utf-8", "surrogatepass")
    if type(value) is np.bytes_:
        return _named("S") + b"".join((value,))
    dtype = _dtype_to_store(value)
    if not isinstance(value, np.generic) or dtype.type is not type(value):
        raise NotEncodable(type(value), "its width depends on the machine. Store a numpy.int64 or numpy.float64")
    return _named(dtype.str) + value.tobytes()


def scalar_from_bytes(data: bytes) -> Any:
    """The inverse of `scalar_to_bytes`."""
    import numpy as np

    name, raw = _split_name(data)
    if name == "U":
        return np.str_(raw.decode("utf-8", "surrogatepass"))
    if name == "S":
        return np.bytes_(raw)
    values = _from_buffer(raw, name)
    if len(values) != 1:
        raise NotDecodable("a numpy scalar has another size than its type")
    return values[0]


def array_to_bytes(value: np.ndarray[Any, Any]) -> bytes:
    """The dtype, the shape, then the items in C order."""
    if value.ndim > _DIMENSIONS_MAX:
        raise NotEncodable(type(value), f"it has more than {_DIMENSIONS_MAX} dimensions")
    shape = struct.pack(f"<{value.ndim}Q", *value.shape)
    return _named(_dtype_to_store(value).str) + _COUNT.pack(value.ndim) + shape + value.tobytes()


def array_from_bytes(data: bytes) -> np.ndarray[Any, Any]:
    """The inverse of `array_to_bytes`: writable, in C order."""
    name, rest = _split_name(data)
    count = _COUNT.unpack_from(rest)[0]
    if count > _DIMENSIONS_MAX:
        raise NotDecodable("an array has too many dimensions")
    shape = struct.unpack_from(f"<{count}Q", rest, 1)
    return _from_buffer(rest[1 + 8 * count :], name).reshape(shape).copy()


def _dtype_to_store(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = value.dtype
    if not _DTYPE.fullmatch(dtype.str):
        raise NotEncodable(type(value), f"of numpy, numbers, bool and times can be stored, not dtype {dtype.str}")
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

    # numpy takes any byte for a bool and is then wrong about it.
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
# Exact, whatever the context of the thread says; a malformed number raises instead of becoming NaN.
_DECIMALS: Final = decimal.Context(traps=[decimal.InvalidOperation])


def _int_to_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _int_from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _complex_to_bytes(value: complex) -> bytes:
    return _COMPLEX.pack(value.real, value.imag)


def _complex_from_bytes(data: bytes) -> complex:
    return complex(*_COMPLEX.unpack(data))


def _decimal_to_bytes(value: decimal.Decimal) -> bytes:
    return str(value).encode()


def _decimal_from_bytes(data: bytes) -> decimal.Decimal:
    return decimal.Decimal(data.decode("ascii"), _DECIMALS)


def _uuid_to_bytes(value: uuid.UUID) -> bytes:
    return value.bytes


def _uuid_from_bytes(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


TO_BYTES: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    int: (BIG_INT, _int_to_bytes),  # msgpack asks only for those beyond 64 bits
    complex: (COMPLEX, _complex_to_bytes),
    decimal.Decimal: (DECIMAL, _decimal_to_bytes),
    uuid.UUID: (UUID, _uuid_to_bytes),
    dt.date: (DATE, date_to_bytes),
    dt.time: (TIME, time_to_bytes),
    dt.datetime: (DATETIME, datetime_to_bytes),
    dt.timedelta: (TIMEDELTA, timedelta_to_bytes),
    dt.timezone: (TIMEZONE, timezone_to_bytes),
    zoneinfo.ZoneInfo: (ZONE, zone_to_bytes),
}
"""Exact type -> its code, and what makes it bytes."""

_FROM_BYTES: Final[dict[int, Callable[[bytes], Any]]] = {
    BIG_INT: _int_from_bytes,
    COMPLEX: _complex_from_bytes,
    DECIMAL: _decimal_from_bytes,
    UUID: _uuid_from_bytes,
    DATE: date_from_bytes,
    TIME: time_from_bytes,
    DATETIME: datetime_from_bytes,
    TIMEDELTA: timedelta_from_bytes,
    TIMEZONE: timezone_from_bytes,
    ZONE: zone_from_bytes,
    NUMPY_SCALAR: scalar_from_bytes,
    NUMPY_ARRAY: array_from_bytes,
}


def value_of(code: int, data: bytes) -> Any:
    """The value in one piece that an extension holds.

    >>> value_of(DECIMAL, b"1.50")
    Decimal('1.50')
    """
    decode = _FROM_BYTES.get(code)
    if decode is None:
        raise NotDecodable(f"extension type {code} is unknown")
    return decode(data)


def extension_of(value: Any) -> tuple[int, bytes] | None:
    r"""Code and bytes of a value in one piece; None if its type is no such type.

    >>> extension_of(dt.date(2013, 1, 2))
    (20, b'\xdd\x07\x01\x02')
    """
    kind = type(value)
    found = TO_BYTES.get(kind)
    if found is not None:
        return found[0], found[1](value)
    if is_numpy(kind):
        if is_array(kind):
            return NUMPY_ARRAY, array_to_bytes(value)
        return NUMPY_SCALAR, scalar_to_bytes(value)
    return None
