"""One column of a batch as bytes, and back: packed where all values are of one plain type, pickle otherwise.

``docs/codec.md`` has what each candidate costs.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from malstrom_py.codec import pickles
from malstrom_py.codec.refusal import Malformed

PICKLED: Final = ord("p")
INTS: Final = ord("q")  # int64, native byte order
FLOATS: Final = ord("d")  # float64, native byte order
STRINGS: Final = ord("s")  # UTF-8 with NUL between them

_NUL: Final = "\0"


def encode_column(column: list[Any]) -> tuple[int, bytes]:
    r"""The tag of a column, and its bytes. `Refused` if a value can be neither packed nor pickled.

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
    return PICKLED, pickles.dump(column)


def decode_column(tag: int, data: memoryview, rows: int) -> list[Any]:
    """The column of ``rows`` rows that `encode_column` made these bytes of."""
    if tag == STRINGS:
        column: Any = str(data, "utf-8", "surrogatepass").split(_NUL)
    elif tag == INTS:
        column = data.cast("q").tolist()
    elif tag == FLOATS:
        column = list(struct.unpack(f"{len(data) // 8}d", data))
    elif tag == PICKLED:
        column = pickles.load(data)
    else:
        raise Malformed(f"columns of kind {tag} are unknown")
    if type(column) is not list or len(column) != rows:
        raise Malformed("a column has another length than its batch")
    return column
