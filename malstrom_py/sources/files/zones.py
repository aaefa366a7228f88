"""Times without a zone in files: converted to UTC from the zone that the user names.

Rule: no time is guessed. A time that the zone has twice or not at all (where clocks change), or that a Python datetime
cannot hold in UTC, makes its record malformed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.row_form import beyond_datetime, is_within_datetime
from malstrom_py.data.schema import ColumnKind, inside, kind_of
from malstrom_py.errors import PlanError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa


class NoSuchTime(ValueError):
    """A time that the zone has twice or not at all, or a value that Python cannot hold.

    The text names the column, not the value. ``rows``: those that have one, if it is not inside another value.
    """

    def __init__(self, text: str, rows: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.rows = rows


def check_holdable(columns: pa.RecordBatch, *, with_text: bool = True) -> None:
    """Raise `NoSuchTime` if ``columns`` hold a value that Python cannot: a year 0 or beyond 9999, or no UTF-8.

    ``with_text``: whether texts are looked at.

    >>> import pyarrow as pa
    >>> check_holdable(pa.RecordBatch.from_pydict({"day": pa.array([-800_000], pa.date32())}))
    Traceback (most recent call last):
    malstrom_py.sources.files.zones.NoSuchTime: column 'day' has a date or time that is not within the years 1 to 9999
    """
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        _check(name, column, with_text=with_text)


def _check(name: str, column: pa.Array, *, with_text: bool) -> None:
    """Check the values of ``column``, and those inside them: a slice of lists has the texts of all of them."""
    import pyarrow as pa

    match kind_of(column.type):
        case ColumnKind.NAIVE | ColumnKind.ZONED | ColumnKind.DATE:
            per_second, seconds = _UNITS.get(str(getattr(column.type, "unit", None) or column.type), (1, 1))
            if not is_within_datetime(column, per_second, seconds):
                raise NoSuchTime(
                    f"column {name!r} has a date or time that is not within the years 1 to 9999",
                    beyond_datetime(column, per_second, seconds),
                )
        case ColumnKind.STR if with_text:
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise NoSuchTime(f"column {name!r} is not valid UTF-8 text") from error
        case ColumnKind.STRUCT:
            for field in column.flatten():
                _check(name, field, with_text=with_text)
        case ColumnKind.LIST:
            _check(name, column.flatten(), with_text=with_text)
        case ColumnKind.MAP:
            for values in (column.keys, column.items):
                _check(name, values, with_text=with_text)


_UNITS: Final = {
    "s": (1, 1),
    "ms": (1_000, 1),
    "us": (1_000_000, 1),
    "ns": (1_000_000_000, 1),
    "date32[day]": (1, 86_400),
    "date64[ms]": (1_000, 1),
}
"""Of each unit of times: so many in a second, or so many seconds."""


def check_timezone(timezone: object) -> str | None:
    """Return ``timezone`` if it is None or a zone that this machine knows; else raise `PlanError`.

    >>> check_timezone("Europe/Berlin")
    'Europe/Berlin'
    """
    if timezone is None:
        return None
    if not isinstance(timezone, str):
        raise PlanError(
            f'sources.Files: timezone must be the name of a zone, such as "UTC" or "Europe/Berlin", got {timezone!r}'
        )
    import pyarrow as pa

    probe = pa.array([0], pa.timestamp("us"))
    try:
        _assumed(probe, timezone, ambiguous="earliest", nonexistent="earliest")
    except pa.ArrowException as error:
        raise PlanError(
            f'sources.Files: timezone {timezone!r} is not known on this machine: name one such as "UTC" or '
            f'"Europe/Berlin"'
        ) from error
    return timezone


def has_naive(schema: pa.Schema) -> bool:
    """Return whether a column of ``schema`` holds times without a zone, also in structs or lists.

    SourceError: they are in another type, such as a map, where no zone can be assigned.
    """
    return True in {_holds_naive(field.name, field.type) for field in schema}


def zoned(batch: pa.RecordBatch, timezone: str | None) -> pa.RecordBatch:
    """Return ``batch`` with naive times taken as ``timezone`` and converted to UTC; may raise `NoSuchTime`.

    >>> import pyarrow as pa
    >>> naive = pa.RecordBatch.from_pydict({"t": pa.array([0], pa.timestamp("us"))})
    >>> zoned(naive, "Europe/Berlin").column("t")[0].as_py().isoformat()
    '1969-12-31T23:00:00+00:00'
    """
    import pyarrow as pa

    if timezone is None or not has_naive(batch.schema):
        return batch
    names = batch.schema.names
    columns = [_zoned(column, name, timezone) for name, column in zip(names, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _holds_naive(name: str, kind: pa.DataType) -> bool:
    import pyarrow as pa

    if _is_naive(kind):
        return True
    found = True in {_holds_naive(name, inner) for _, inner in inside(kind)}
    if found and not isinstance(kind, pa.StructType | pa.ListType | pa.LargeListType):
        raise SourceError(
            f"column {name!r} has times without a zone in a {kind}: timezone= is for those of columns, structs and "
            f"lists; leave it out, and convert the times in a step"
        )
    return found


def _zoned(column: pa.Array, name: str, timezone: str) -> pa.Array:
    """Return ``column`` as `zoned` does. Null structs and lists stay null."""
    import pyarrow as pa
    import pyarrow.compute

    kind = column.type
    if _is_naive(kind):
        return _in_utc(column, name, timezone)
    if not _holds_naive(name, kind):
        return column
    if isinstance(kind, pa.StructType):
        fields = [_zoned(field, name, timezone) for field in column.flatten()]
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, names, mask=column.is_null())
    compute: Any = pyarrow.compute
    ends = compute.cumulative_sum(compute.fill_null(compute.list_value_length(column), 0))
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    lists = pa.LargeListArray if isinstance(kind, pa.LargeListType) else pa.ListArray
    return lists.from_arrays(offsets, _zoned(column.flatten(), name, timezone), mask=column.is_null())


def _in_utc(column: pa.Array, name: str, timezone: str) -> pa.Array:
    import pyarrow as pa

    try:
        moments = _assumed(column, timezone).cast(pa.timestamp(column.type.unit, "UTC"))
    except pa.ArrowInvalid as error:
        raise NoSuchTime(
            f"column {name!r} has a time that is ambiguous or does not exist in {timezone}, because clocks change "
            f"then: correct it, or leave timezone= out and convert the times in a step",
            _changed(column, timezone),
        ) from error
    per_second, _ = _UNITS[column.type.unit]
    if not is_within_datetime(moments, per_second):
        raise NoSuchTime(
            f"column {name!r} has a time that is not within the years 1 to 9999 in UTC: correct it, or leave timezone= "
            f"out and convert the times in a step",
            beyond_datetime(moments, per_second),
        )
    return moments


def _changed(column: pa.Array, timezone: str) -> list[int]:
    """Return the rows whose time is ambiguous or does not exist in ``timezone``."""
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
    either = (_assumed(column, timezone, ambiguous=end, nonexistent=end) for end in ("earliest", "latest"))
    rows: list[int] = compute.indices_nonzero(compute.not_equal(*either)).to_pylist()
    return rows


def _assumed(column: pa.Array, timezone: str, **where_changed: str) -> pa.Array:
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
    return compute.assume_timezone(column, timezone, **where_changed)


def _is_naive(kind: pa.DataType) -> bool:
    return kind_of(kind) is ColumnKind.NAIVE
