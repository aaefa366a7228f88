"""Partitioned output: folders named as Hive and Spark name them, ``column=value``, and the rows of each.

Names of the folders of partitioned output, as Hive and Spark write them: ``column=value``, one folder per column.

`parse_folder` reads such a name as Spark does.

A name never leads out of its folder: each has a ``=`` in it, and ``/`` is escaped. What a name cannot tell apart from
something else (the empty text, the name that means None) is refused.

Which rows go into which folder of partitioned output. No row is made: values are told apart as columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.rows_to_columns import is_unicode
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import PlanError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa

NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive calls the partition of None."""

_NAME_BYTES_MAX: Final = 255
_PARTITION_KINDS: Final = {ColumnKind.STR, ColumnKind.INT, ColumnKind.BOOL, ColumnKind.DATE, ColumnKind.NULL}
_ESCAPED: Final = {code: f"%{code:02X}" for code in [*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^")]}
_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")


def checked_columns(partition_by: object, sink: str = "sinks.Files") -> tuple[str, ...]:
    """The columns that ``partition_by`` of a sink asks for; `PlanError` if they cannot be.

    >>> checked_columns("day"), checked_columns(["year", "month"]), checked_columns(None)
    (('day',), ('year', 'month'), ())
    """
    if partition_by is None:
        return ()
    names = [partition_by] if isinstance(partition_by, str) else partition_by
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise PlanError(f"{sink}: partition_by is the name of a column, or a list of some")
    if len(set(names)) < len(names):
        raise PlanError(f"{sink}: partition_by names a column twice")
    for name in names:
        if not name or name.startswith(("_", ".")):
            raise PlanError(f"{sink}: readers skip the folders of a partition column {name!r}: rename it")
        if not is_unicode(name) or len(f"{escaped(name)}={NULL_NAME}".encode()) > _NAME_BYTES_MAX:
            raise PlanError(f"{sink}: the name of a partition column is too long, or no UTF-8: rename it")
    return tuple(names)


def folder_of(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The folder of the partition in which ``columns`` have ``values``: str, int, bool, date or None.

    >>> folder_of(["day", "to"], [date(2013, 1, 1), "a/b"]), folder_of(["late"], [True]), folder_of(["to"], [None])
    ('day=2013-01-01/to=a%2Fb', 'late=true', 'to=__HIVE_DEFAULT_PARTITION__')

    Raises:
        SinkError: a value has no name of its own (the empty text, the name that means None, text that is no UTF-8), or
            one of more than 255 bytes.
    """
    return "/".join([_name_of(column, value) for column, value in zip(columns, values, strict=True)])


def parse_folder(folder: str) -> tuple[str, str | None] | None:
    """The column and the text that the name of a ``folder`` tells, None for None; None if it is of no partition.

    >>> parse_folder("to=a%2Fb"), parse_folder("to=__HIVE_DEFAULT_PARTITION__"), parse_folder("flights")
    (('to', 'a/b'), ('to', None), None)
    """
    column, is_partition, text = folder.partition("=")
    if not is_partition:
        return None
    return _unescaped(column), None if text == NULL_NAME else _unescaped(text)


def escaped(text: str) -> str:
    """``text`` with the characters that Hive escapes as ``%XX``."""
    return text.translate(_ESCAPED)


def _unescaped(text: str) -> str:
    """``text`` as Spark reads it: each escape is a character of its own, and no byte of one."""
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)


def _name_of(column: str, value: Any) -> str:
    name = f"{escaped(column)}={_text_of(column, value)}"
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise SinkError(
            f"column {column!r} has a value too long for the name of its folder ({_NAME_BYTES_MAX} bytes at most): "
            f"partition by something shorter"
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
        what = "the empty text" if not text else f"the text {NULL_NAME!r}"
        raise SinkError(f"column {column!r} has {what}, which a partition would not tell from None: replace it")
    if not is_unicode(text):
        raise SinkError(f"column {column!r} has text that is no UTF-8, so its folder has no name: replace it")
    return escaped(text)


def split(names: Sequence[str], columns: Sequence[pa.Array]) -> Iterator[tuple[str, pa.Array | None]]:
    """Each folder, with the indices of its rows in order (None: all of them), for partition ``columns`` so named.

    >>> import pyarrow as pa
    >>> [(folder, rows.to_pylist()) for folder, rows in split(["a"], [pa.array(["x", None, "x"])])]
    [('a=x', [0, 2]), ('a=__HIVE_DEFAULT_PARTITION__', [1])]
    """
    for name, column in zip(names, columns, strict=True):
        _check_type(name, column.type)
    for values, rows in _groups(columns, None):
        yield folder_of(names, values), rows


def _check_type(name: str, kind: pa.DataType) -> None:
    if kind_of(kind) not in _PARTITION_KINDS:
        raise SinkError(
            f"column {name!r} holds {kind}, and output is partitioned by str, int, bool or date: "
            f"make it one of them in a map step"
        )


def _groups(columns: Sequence[pa.Array], rows: pa.Array | None) -> Iterator[tuple[list[Any], pa.Array | None]]:
    """The values of ``columns`` that occur among ``rows`` (None: in all), each with its rows."""
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

    pc: Any = pyarrow.compute  # its functions are made while it is imported, so that no checker knows them
    encoded = column.dictionary_encode(null_encoding="encode")
    values, codes = encoded.dictionary.to_pylist(), encoded.indices
    if len(values) == 1:
        yield values[0], None
        return
    # Codes are given out in the order in which values come, so both counts and sorted rows are in that order.
    order, start = pc.array_sort_indices(codes), 0
    for value, count in zip(values, codes.value_counts().field("counts").to_pylist(), strict=True):
        yield value, order.slice(start, count)
        start += count
