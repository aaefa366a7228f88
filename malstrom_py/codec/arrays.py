"""Scalars and arrays of numpy as bytes, and back. numpy is imported only where there is a value of it."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.codec.refusal import Malformed, Refused

if TYPE_CHECKING:
    import numpy as np

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
        raise Refused(type(value), "its width depends on the machine. Store a numpy.int64 or numpy.float64")
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
        raise Malformed("a numpy scalar has another size than its type")
    return values[0]


def array_to_bytes(value: np.ndarray[Any, Any]) -> bytes:
    """The dtype, the shape, then the items in C order."""
    if value.ndim > _DIMENSIONS_MAX:
        raise Refused(type(value), f"it has more than {_DIMENSIONS_MAX} dimensions")
    shape = struct.pack(f"<{value.ndim}Q", *value.shape)
    return _named(_dtype_to_store(value).str) + _COUNT.pack(value.ndim) + shape + value.tobytes()


def array_from_bytes(data: bytes) -> np.ndarray[Any, Any]:
    """The inverse of `array_to_bytes`: writable, in C order."""
    name, rest = _split_name(data)
    count = _COUNT.unpack_from(rest)[0]
    if count > _DIMENSIONS_MAX:
        raise Malformed("an array has too many dimensions")
    shape = struct.unpack_from(f"<{count}Q", rest, 1)
    return _from_buffer(rest[1 + 8 * count :], name).reshape(shape).copy()


def _dtype_to_store(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = value.dtype
    if not _DTYPE.fullmatch(dtype.str):
        raise Refused(type(value), f"of numpy, numbers, bool and times can be stored, not dtype {dtype.str}")
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
        raise Malformed("an array of an unknown type")
    return np.dtype(name)


def _from_buffer(raw: bytes, name: str) -> np.ndarray[Any, Any]:
    import numpy as np

    # numpy takes any byte for a bool and is then wrong about it.
    if name == "|b1" and raw.strip(b"\x00\x01"):
        raw = bytes(map(bool, raw))
    return np.frombuffer(raw, _dtype(name))
