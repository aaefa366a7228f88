"""Rows that are new since an earlier run: by a column that only grows, up to the largest value that there is now.

Rule: a run reads what lies above the largest value of the run before, and not above the largest value of when it was
pinned. Bounds are computed and compared by Spark; here they are text that the type of the column can be cast from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from malstrom_py.errors import SourceError, lasting
from malstrom_py.spark.failures import spark_errors

_KINDS: Final = {
    "ByteType": "int",
    "ShortType": "int",
    "IntegerType": "int",
    "LongType": "int",
    "DecimalType": "decimal",
    "StringType": "string",
    "DateType": "date",
    "TimestampType": "timestamp",
    "TimestampNTZType": "timestamp_ntz",
}
"""Types of Spark whose values have one order, and what they are to a bound."""


@dataclass(frozen=True, slots=True)
class Bound:
    """All rows up to ``upto`` of ``column`` are read, or pinned; ``upto`` is None where there was none.

    ``upto`` is text, of moments their microseconds since 1970 in UTC; ``kind``: what kind of values the column has.
    """

    column: str
    kind: str
    upto: str | None

    def record(self) -> dict[str, Any]:
        """All of it as plain JSON, for `bound_of`."""
        return asdict(self)


def bound_of(record: Mapping[str, Any], column: str) -> Bound:
    """The bound in the ``record`` of an earlier run; `SourceError` if it has none of ``column``."""
    kept = record.get("since")
    if not isinstance(kept, Mapping) or kept.get("column") != column:
        raise lasting(
            SourceError(
                f"the run that the job goes on from has not kept how far it had read by column {column!r}: start the "
                f'job afresh with resume="none", or give since= as it was'
            )
        )
    return Bound(column, str(kept["kind"]), kept["upto"])


def bounded(frame: Any, found: Any, column: str, after: Bound | None) -> tuple[Any, Bound]:
    """The rows of ``frame``, of schema ``found``, that are new behind ``after``, and the bound up to which they go.

    Raises:
        SourceError: there is no such column, its type has no order to go by, or a row has no value in it.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if column not in found.names:
        raise lasting(SourceError(f"there is no column {column!r} for since=: there are {', '.join(found.names)}"))
    kind = _KINDS.get(type(found[column].dataType).__name__)
    if kind is None:
        raise lasting(
            SourceError(
                f"column {column!r} is of type {found[column].dataType.simpleString()}, by which since= cannot tell "
                f"what is new: give it a column of whole numbers, decimals, text, days or moments"
            )
        )
    if after is not None and after.kind != kind:
        raise lasting(
            SourceError(
                f"column {column!r} was of kind {after.kind} in the run that the job goes on from, and is of kind "
                f'{kind} now: cast it, or start the job afresh with resume="none"'
            )
        )
    values = F.col(f"`{column.replace('`', '``')}`")
    with spark_errors(f"Spark does not find the largest value of column {column!r}", SourceError):
        largest = F.max(values)
        told = F.unix_micros(largest) if kind == "timestamp" else largest
        nulls = F.count(F.when(values.isNull(), F.lit(1)))
        upto, without = frame.agg(told.cast("string"), nulls).first()
    if without:
        raise lasting(
            SourceError(
                f"{without} rows have no value in column {column!r}, so since= cannot tell whether they are new: fill "
                f"the column, or leave such rows out with filter="
            )
        )
    kind_now = found[column].dataType

    def literal(text: str) -> Any:
        return F.timestamp_micros(F.lit(int(text))) if kind == "timestamp" else F.lit(text).cast(kind_now)

    if upto is None:  # there are no rows
        return frame, Bound(column, kind, None if after is None else after.upto)
    new = values <= literal(upto)
    if after is not None and after.upto is not None:
        new = (values > literal(after.upto)) & new
        with spark_errors(f"Spark does not compare the values of column {column!r}", SourceError):
            is_grown = frame.sparkSession.range(1).select(literal(upto) > literal(after.upto)).first()[0]
        upto = upto if is_grown else after.upto
    return frame.filter(new), Bound(column, kind, upto)
