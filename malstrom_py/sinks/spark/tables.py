"""What is to go into a table of Spark's, compared with the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SinkError
from malstrom_py.sinks.spark.types import without_nulls
from malstrom_py.spark.arrow_types import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

_WIDER: Final = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "bigint": (),
    "float": ("double",),
}


def check_table(session: Any, table: str, mode: str, partition_by: Sequence[str], schema: pa.Schema | None) -> None:
    """`SinkError` if ``table`` is there and is not to be, or rows of ``schema`` (None: unknown) do not go into it."""
    if mode == "overwrite" or not session.catalog.tableExists(table):
        return
    if mode == "error":
        raise SinkError(f"table {table!r} is there already, and mode is 'error': drop it, or use another mode")
    if partition_by:
        there = [column.name for column in session.catalog.listColumns(table) if column.isPartition]
        if there != list(partition_by):
            raise SinkError(
                f"table {table!r} is partitioned by {there}, and partition_by is {list(partition_by)}: give the same, "
                f"or leave it out"
            )
    if schema is not None:
        _targets(session, table, schema)


def conformed(session: Any, frame: Any, table: str, schema: pa.Schema) -> Any:
    """``frame``, which holds rows of ``schema``, with the columns of ``table`` in their order and types."""
    from pyspark.sql.functions import col

    return frame.select(
        *(
            col(f"`{name.replace('`', '``')}`").cast(field.dataType).alias(field.name)
            for name, field in _targets(session, table, schema)
        )
    )


def _targets(session: Any, table: str, schema: pa.Schema) -> list[tuple[str, Any]]:
    """The columns of ``schema`` and those of ``table`` that they go to, in the order of the table."""
    there = {field.name.lower(): field for field in session.table(table).schema}
    mine = {field.name.lower(): field for field in schema}
    wrong = [f"{field.name!r} (only in the table)" for name, field in there.items() if name not in mine]
    wrong += [f"{field.name!r} (not in the table)" for name, field in mine.items() if name not in there]
    for name, field in there.items():
        if name in mine and (told := _misfit(mine[name], field.dataType.simpleString())):
            wrong.append(f"{field.name!r} ({told})")
    if wrong:
        raise SinkError(
            f"the columns do not go into table {table!r}: {', '.join(wrong)}. Make them alike in a map step, or write "
            f"another table"
        )
    return [(mine[name].name, field) for name, field in there.items()]


def _misfit(field: pa.Field, there: str) -> str:
    import pyarrow as pa

    if pa.types.is_null(field.type):
        return ""
    (found,) = spark_schema(pa.schema([(field.name, without_nulls(field.type))]))
    kind = found.dataType.simpleString()
    if kind == there or there in _WIDER.get(kind, ()):
        return ""
    return f"{there} there, {kind} now"
