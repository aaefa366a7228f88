"""Partitioned output: folder names as Hive and Spark write them (``column=value``), and the rows of each folder.

Rules:
- A folder name never leads out of the output folder: it contains a ``=``, and ``/`` is escaped. `parse_folder` reads it
  as Spark does.
- Values without a unique name (the empty string, the name that means None) are refused.
- Rows are grouped by columns, without conversion to rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.data.unfit_values import is_unicode
from malstrom_py.errors import PlanError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa

NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for the partition of None."""

_NAME_BYTES_MAX: Final = 255
_PARTITION_KINDS: Final = {ColumnKind.STR, ColumnKind.INT, ColumnKind.BOOL, ColumnKind.DATE, ColumnKind.NULL}
_ESCAPED: Final = {code: f"%{code:02X}" for code in [*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^")]}
_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")


def checked_columns(partition_by: object, sink: str = "sinks.Files") -> tuple[str, ...]:
    """Check the argument ``partition_by`` of a sink and return its columns; `PlanError` if it is invalid.

    >>> checked_columns("day"), checked_columns(["year", "month"]), checked_columns(None)
    (('day',), ('year', 'month'), ())
    """
    if partition_by is None:
        return ()
    names = [partition_by] if isinstance(partition_by, str) else partition_by
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise PlanError(f"{sink}: partition_by is a column name or a list of column names")
    if len(set(names)) < len(names):
        raise PlanError(f"{sink}: partition_by names a column twice")
    for name in names:
        if not name or name.startswith(("_", ".")):
            raise PlanError(f"{sink}: readers skip the folders of a partition column {name!r}: rename it")
        if not is_unicode(name) or len(f"{escaped(name)}={NULL_NAME}".encode()) > _NAME_BYTES_MAX:
            raise PlanError(f"{sink}: the name of a partition column is too long, or not valid UTF-8: rename it")
    return tuple(names)


def folder_of(columns: Sequence[str], values: Sequence[Any]) -> str:
    """Return the folder of the partition with these ``values`` (str, int, bool, date or None) of ``columns``.

    >>> folder_of(["day", "to"], [date(2013, 1, 1), "a/b"]), folder_of(["late"], [True]), folder_of(["to"], [None])
    ('day=2013-01-01/to=a%2Fb', 'late=true', 'to=__HIVE_DEFAULT_PARTITION__')

    Raises:
        SinkError: a value has no unique name (the empty string, the name that means None, invalid UTF-8), or its name
            has more than 255 bytes.
    """
    return "/".join([_name_of(column, value) for column, value in zip(columns, values, strict=True)])


def parse_folder(folder: str) -> tuple[str, str | None] | None:
    """Parse the name of a ``folder`` into column and text (None for null); None if it is not a partition.

    >>> parse_folder("to=a%2Fb"), parse_folder("to=__HIVE_DEFAULT_PARTITION__"), parse_folder("flights")
    (('to', 'a/b'), ('to', None), None)
    """
    column, is_partition, text = folder.partition("=")
    if not is_partition:
        return None
    return _unescaped(column), None if text == NULL_NAME else _unescaped(text)


def escaped(text: str) -> str:
    """Escape the characters that Hive escapes, as ``%XX``."""
    return text.translate(_ESCAPED)


def _unescaped(text: str) -> str:
    """Unescape ``text`` as Spark does: an escape is one character, not one byte of UTF-8."""
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)


def _name_of(column: str, value: Any) -> str:
    name = f"{escaped(column)}={_text_of(column, value)}"
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise SinkError(
            f"column {column!r} has a value too long for the name of its folder ({_NAME_BYTES_MAX} bytes at most): "
            f"partition by shorter values"
        )
    return name


def _text_of(column: str, value: Any) -> str:
    if value is None:
        return NULL_NAME
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    text = str(value)
    if text in {"", NULL_NAME}:
        what = "an empty string" if not text else f"the string {NULL_NAME!r}"
        raise SinkError(f"column {column!r} has {what}, whose partition would be that of None: replace it")
    if not is_unicode(text):
        raise SinkError(f"column {column!r} has text that is not valid UTF-8, so it cannot name a folder: replace it")
    return escaped(text)


def split(names: Sequence[str], columns: Sequence[pa.Array]) -> Iterator[tuple[str, pa.Array | None]]:
    """Group rows by partition: each folder with the indices of its rows in order (None means all rows).

    >>> import pyarrow as pa
    >>> [(folder, rows.to_pylist()) for folder, rows in split(["a"], [pa.array(["x", None, "x"])])]
    [('a=x', [0, 2]), ('a=__HIVE_DEFAULT_PARTITION__', [1])]
    """
    for name, column in zip(names, columns, strict=True):
        check_type(name, column.type)
    for values, rows in _groups(columns, None):
        yield folder_of(names, values), rows


def check_type(name: str, kind: pa.DataType) -> None:
    """Raise `SinkError` if output cannot be partitioned by column ``name`` of type ``kind``."""
    if kind_of(kind) not in _PARTITION_KINDS:
        raise SinkError(
            f"column {name!r} holds {kind}, and output is partitioned by str, int, bool or date: "
            f"convert it in a map step"
        )


def _groups(columns: Sequence[pa.Array], rows: pa.Array | None) -> Iterator[tuple[list[Any], pa.Array | None]]:
    """Iterate over the distinct values of ``columns`` among ``rows`` (None means all), each with its rows."""
    column, *others = columns
    for value, picked in _by_value(column if rows is None else column.take(rows)):
        mine = rows if picked is None else picked if rows is None else rows.take(picked)
        if not others:
            yield [value], mine
            continue
        for values, theirs in _groups(others, mine):
            yield [value, *values], theirs


def _by_value(column: pa.Array) -> Iterator[tuple[Any, pa.Array | None]]:
    import pyarrow.compute

    pc: Any = pyarrow.compute  # It creates its functions on import, so mypy does not know them.
    encoded = column.dictionary_encode(null_encoding="encode")
    values, codes = encoded.dictionary.to_pylist(), encoded.indices
    if len(values) == 1:
        yield values[0], None
        return
    # Codes are in the order of first appearance, so counts and sorted rows have the same order.
    order, start = pc.array_sort_indices(codes), 0
    for value, count in zip(values, codes.value_counts().field("counts").to_pylist(), strict=True):
        yield value, order.slice(start, count)
        start += count
