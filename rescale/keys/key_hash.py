"""The stable hash of a key: 64 bits, the same in every process, Python version and layout (F3, F4).

Rule: keys that are equal in Python have one canonical form, which alone is hashed. ``docs/key-hash.md`` defines the
form byte by byte. It must never change, because the slot of all stored state depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isinf
from sys import getsizeof
from typing import Any, Final

import xxhash

from malstrom_py.errors import InternalError
from malstrom_py.rescale.keys.key_types import Kind, compared_fields, kind_of

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB
"""The constants of splitmix64 (Steele, Lea and Flood, 2014; the finalizer is Stafford's mix 13)."""

PRIME: Final = (1 << 128) - 159
"""The largest prime below 2**128. Numbers outside int64 are represented by their residue modulo this prime."""

_DAY_ZERO: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


def hash_key(key: Any) -> int:
    """Return the hash of a legal key, from 0 to 2**64 - 1. Does not check the key.

    >>> hex(hash_key("user-0001")), hash_key(1) == hash_key(True) == hash_key(Decimal(1))
    ('0x2a31992d3ecb816d', True)
    """
    return hash_and_size(key)[0]


def hash_and_size(key: Any) -> tuple[int, int]:
    """Return the hash of a legal key, and the approximate bytes of memory of the key."""
    if type(key) is str:  # most are
        encoded = _str(key)
    else:
        number = int64_of(key)
        if number is not None:
            return mix64(number), getsizeof(key)
        encoded = encode_key(key)
    return xxhash.xxh64_intdigest(encoded), getsizeof(key) + len(encoded)


def mix64(number: int) -> int:
    """Return the hash of an integer from -2**63 to 2**63 - 1: the finalizer of splitmix64."""
    z = (number + GOLDEN) & MASK
    z = (z ^ (z >> 30)) * MIX_1 & MASK
    z = (z ^ (z >> 27)) * MIX_2 & MASK
    return z ^ (z >> 31)


def encode_key(key: Any) -> bytes:
    """Return the canonical form of a legal key: a tag, then the bytes for that tag. Does not check the key.

    >>> encode_key((1, "a")).hex()
    '10020000000000000001010000000000000005010000000000000061'
    """
    kind = kind_of(type(key))
    if kind is None:
        raise InternalError(f"a key holds a {type(key).__name__}, which should have been refused before it was encoded")
    return _ENCODERS[kind](key)


def int64_of(key: Any) -> int | None:
    """Return ``key`` as an integer if it is a number that equals one from -2**63 to 2**63 - 1, else None."""
    to_number = _NUMBERS.get(kind_of(type(key)))
    return _int64_of(to_number(key)) if to_number is not None else None


def _int64_of(number: int | float | Decimal) -> int | None:
    if type(number) is not int:
        if isinstance(number, Decimal):
            if number == 0:
                return 0
            # The exponent is checked first: the integer of Decimal("1E+999999999") does not fit into memory.
            if number.is_infinite() or number.adjusted() > 18 or number != number.to_integral_value():
                return None
        elif isinstance(number, float) and not number.is_integer():
            return None
        number = int(number)
    return number if -(1 << 63) <= number < 1 << 63 else None


def _number(number: int | float | Decimal) -> bytes:
    integer = _int64_of(number)
    if integer is not None:
        return b"\x01" + _int64(integer)
    if isinstance(number, Decimal):
        if number.is_infinite():
            return b"\x04" if number.is_signed() else b"\x03"
        sign, digits, exponent = number.as_tuple()
        # Through Decimal, because int(str) refuses long strings.
        residue = int(Decimal((sign, digits, 0))) * pow(10, int(exponent), PRIME)
    elif isinstance(number, float):
        if isinf(number):
            return b"\x03" if number > 0 else b"\x04"
        numerator, denominator = number.as_integer_ratio()
        residue = numerator * pow(denominator, -1, PRIME)
    else:
        residue = number
    return b"\x02" + (residue % PRIME).to_bytes(16, "little")


def _int64(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def _text(text: str) -> bytes:
    return _counted(str.encode(text, "utf-8", "surrogatepass"))


def _str(key: str) -> bytes:
    return b"\x05" + _text(key)


def _datetime(key: datetime) -> bytes:
    offset = key.utcoffset()
    days = key.toordinal() - _DAY_ZERO
    micros = ((days * 24 + key.hour) * 60 + key.minute) * 60_000_000 + key.second * 1_000_000 + key.microsecond
    if offset is None:
        return b"\x08" + _int64(micros)
    return b"\x09" + _int64(micros - offset // _MICROSECOND)


def _time(key: time) -> bytes:
    offset = key.replace(fold=0).utcoffset()
    micros = (key.hour * 60 + key.minute) * 60_000_000 + key.second * 1_000_000 + key.microsecond
    if offset is None:
        return b"\x0a" + _int64(micros)
    return b"\x0b" + _int64(micros - offset // _MICROSECOND)


def _enum(key: Enum) -> bytes:
    return b"\x0e" + _text(type(key).__qualname__) + _text(key._name_)


def _flag(key: Enum) -> bytes:
    return b"\x0f" + _text(type(key).__qualname__) + encode_key(key._value_)  # a combined flag has no name


def _tuple(key: tuple[Any, ...]) -> bytes:
    items = [encode_key(item) for item in key]
    return b"\x10" + len(items).to_bytes(8, "little") + b"".join(items)


def _dataclass(key: Any) -> bytes:
    names = compared_fields(type(key))
    values = [encode_key(getattr(key, name)) for name in names]
    return b"\x11" + _text(type(key).__qualname__) + len(values).to_bytes(8, "little") + b"".join(values)


_NUMBERS: Final[dict[Kind | None, Callable[[Any], int | float | Decimal]]] = {
    "int": int.__index__,
    "float": float.__float__,
    "decimal": lambda key: key,
    "numpy int": int,
    "numpy float": float,
}
"""Kind of a number -> a function that returns the plain number, even if the class overrides conversions."""

_ENCODERS: Final[dict[Kind, Callable[[Any], bytes]]] = {
    "none": lambda _: b"\x00",
    "int": lambda key: _number(int.__index__(key)),
    "float": lambda key: _number(float.__float__(key)),
    "decimal": _number,
    "numpy int": lambda key: _number(int(key)),
    "numpy float": lambda key: _number(float(key)),
    "str": _str,
    "bytes": lambda key: b"\x06" + _counted(key),
    "date": lambda key: b"\x07" + _int64(key.toordinal() - _DAY_ZERO),
    "datetime": _datetime,
    "time": _time,
    "timedelta": lambda key: b"\x0c" + (key // _MICROSECOND).to_bytes(16, "little", signed=True),
    "uuid": lambda key: b"\x0d" + key.bytes,
    "enum": _enum,
    "flag": _flag,
    "tuple": _tuple,
    "dataclass": _dataclass,
}
