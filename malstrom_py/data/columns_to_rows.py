"""Columns into rows. `malstrom_py.data.rows_to_columns` is the inverse. No other module makes rows of columns.

Rule: a row is a dict of Python's own types, equal to what Arrow's ``to_pylist`` returns; only faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import in_microseconds
from malstrom_py.errors import CodecError

if TYPE_CHECKING:
    import pyarrow as pa

_NANOSECONDS: Final = ("timestamp[ns", "time64[ns", "duration[ns")
_NAIVE_TIMES: Final = {"timestamp[us]": 1_000_000, "timestamp[ms]": 1_000}
_YEAR_1_S: Final = -62_135_596_800
_YEAR_10000_S: Final = 253_402_300_800
_COMPILED_MAX: Final = 200


def rows_of(columns: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return one dict per row of an Arrow record batch: column name -> Python value, None for null.

    >>> import pyarrow as pa
    >>> rows_of(pa.RecordBatch.from_pydict({"carrier": ["UA", "B6"], "delay": [2, None]}))
    [{'carrier': 'UA', 'delay': 2}, {'carrier': 'B6', 'delay': None}]
    """
    names = columns.schema.names
    if not names:
        return [{} for _ in range(columns.num_rows)]
    lists = [python_values(column, f"column {name!r}") for name, column in zip(names, columns.columns, strict=True)]
    if len(names) <= _COMPILED_MAX:
        return _dicts(len(names))(names, zip(*lists, strict=True))
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


@cache
def _dicts(width: int) -> Callable[[Sequence[str], Iterable[tuple[Any, ...]]], list[dict[str, Any]]]:
    """Compile a function that makes dicts of rows of ``width`` values with a dict display.

    That takes a third of the time of ``dict(zip(names, row))``. Names are arguments, never code.
    """
    numbers = range(width)
    names, values = ("".join(f"{letter}{number}," for number in numbers) for letter in "nv")
    items = ",".join(f"n{number}:v{number}" for number in numbers)
    source = f"def make(names, rows):\n    ({names}) = names\n    return [{{{items}}} for ({values}) in rows]"
    made: dict[str, Any] = {}
    exec(source, made)
    maker: Callable[[Sequence[str], Iterable[tuple[Any, ...]]], list[dict[str, Any]]] = made["make"]
    return maker


def python_values(column: pa.Array, what: str) -> list[Any]:
    """Return a column as a list of Python's own types; raise `CodecError` naming ``what`` if they cannot hold a value.

    Nanoseconds are cast to microseconds, because Arrow would return pandas types where pandas is installed.
    """
    kind = str(column.type)
    try:
        if kind in _NAIVE_TIMES and is_within_datetime(column, _NAIVE_TIMES[kind]):
            import polars as pl

            return pl.Series(column).to_list()  # the same datetimes in a fifth of the time
        if kind.startswith(_NANOSECONDS):
            column = column.cast(in_microseconds(column.type))
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, LookupError):
        # Without the cause: Arrow's message quotes the value.
        raise CodecError(
            f"{what} of Arrow type {column.type} has a value that Python cannot hold (finer than a microsecond, "
            f"beyond the years 1 to 9999, in an unknown zone, or not UTF-8): cast the column first."
        ) from None
    return values


def is_within_datetime(times: pa.Array, per_second: int) -> bool:
    """Return whether all of ``times`` are in the years 1 to 9999; beyond them Polars panics."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pc.call_function("min_max", [times.cast(pa.int64())]).as_py()
    if ends["min"] is None:
        return True
    return bool(_YEAR_1_S * per_second <= ends["min"] and ends["max"] < _YEAR_10000_S * per_second)
