"""Which rows go into which folder of partitioned output. No row is made: values are told apart as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.hive import folder_of

if TYPE_CHECKING:
    import pyarrow as pa


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
    import pyarrow as pa

    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not (is_text or types.is_integer(kind) or types.is_boolean(kind) or types.is_date(kind) or types.is_null(kind)):
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
