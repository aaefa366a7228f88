"""One column of a batch as bytes, and back: packed where all values are of one plain type, pickle otherwise.

What is in Arrow already goes as an Arrow IPC stream.

``docs/codec.md`` has what each candidate costs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.codec import pickles
from malstrom_py.codec.refusal import Malformed

if TYPE_CHECKING:
    import pyarrow as pa

PICKLED: Final = ord("p")
INTS: Final = ord("q")  # int64, native byte order
FLOATS: Final = ord("d")  # float64, native byte order
STRINGS: Final = ord("s")  # UTF-8 with NUL between them
ARROW: Final = ord("a")  # an Arrow IPC stream of one record batch

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
        raise Malformed("a column has another length than its batch")
    return batch
