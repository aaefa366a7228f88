"""The extension types of the stored form: their codes, and how values of one piece become bytes and come back.

A value in one piece (a date, a Decimal) is an extension with its bytes. A value made of others (a tuple, a set, an
object) is an array whose first item is an empty extension, its *mark*: so nesting stays in msgpack, where C counts
its depth, and no byte is copied once per level. Codes are part of the stored form: never change or reuse one.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Final

from malstrom_py.codec import arrays, times
from malstrom_py.codec.refusal import Malformed

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
    dt.date: (DATE, times.date_to_bytes),
    dt.time: (TIME, times.time_to_bytes),
    dt.datetime: (DATETIME, times.datetime_to_bytes),
    dt.timedelta: (TIMEDELTA, times.timedelta_to_bytes),
    dt.timezone: (TIMEZONE, times.timezone_to_bytes),
    zoneinfo.ZoneInfo: (ZONE, times.zone_to_bytes),
}
"""Exact type -> its code, and what makes it bytes."""

_FROM_BYTES: Final[dict[int, Callable[[bytes], Any]]] = {
    BIG_INT: _int_from_bytes,
    COMPLEX: _complex_from_bytes,
    DECIMAL: _decimal_from_bytes,
    UUID: _uuid_from_bytes,
    DATE: times.date_from_bytes,
    TIME: times.time_from_bytes,
    DATETIME: times.datetime_from_bytes,
    TIMEDELTA: times.timedelta_from_bytes,
    TIMEZONE: times.timezone_from_bytes,
    ZONE: times.zone_from_bytes,
    NUMPY_SCALAR: arrays.scalar_from_bytes,
    NUMPY_ARRAY: arrays.array_from_bytes,
}


def value_of(code: int, data: bytes) -> Any:
    """The value in one piece that an extension holds.

    >>> value_of(DECIMAL, b"1.50")
    Decimal('1.50')
    """
    decode = _FROM_BYTES.get(code)
    if decode is None:
        raise Malformed(f"extension type {code} is unknown")
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
    if arrays.is_numpy(kind):
        if arrays.is_array(kind):
            return NUMPY_ARRAY, arrays.array_to_bytes(value)
        return NUMPY_SCALAR, arrays.scalar_to_bytes(value)
    return None
