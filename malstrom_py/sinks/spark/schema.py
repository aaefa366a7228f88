"""Arrow types as Spark reads them from Parquet, and one schema for all that is published together: what workers wrote,
and what is there already.

Rule: a column keeps its type. Only what was of no type yet takes one later, and Decimals get more digits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import (
    ColumnKind,
    inside,
    joined_type,
    kind_of,
    stored_type,
    with_inside,
)
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.errors.text import describe_error
from malstrom_py.sinks.files.given_columns import GivenColumns
from malstrom_py.sinks.files.partitions import parse_folder
from malstrom_py.sinks.files.schemas import given_schema as schema_of_files
from malstrom_py.sinks.files.schemas import in_files, packed, unpacked_schema, without_nulls
from malstrom_py.sinks.files.tables import ParquetEncoder
from malstrom_py.sinks.files.target_columns import TargetColumns
from malstrom_py.sinks.staged.payloads import StagedFile, packed_schemas
from malstrom_py.sinks.staged.problems import sink_errors
from malstrom_py.sinks.staged.writing import RollingFiles
from malstrom_py.spark.types import arrow_schema, spark_form

if TYPE_CHECKING:
    import pyarrow as pa

_LISTED_MAX: Final = 10


def schema_for_spark(schema: pa.Schema) -> pa.Schema:
    """``schema`` in types that Spark reads; a column of None only stays of no type.

    Raises:
        SinkError: Spark has no type for a column, or takes the names of two for one.
    """
    import pyarrow as pa

    _check_names([field.name for field in schema], "columns")
    return pa.schema([(field.name, _spark_type(field.name, stored_type(field.type, times=False))) for field in schema])


def joined_schema(known: pa.Schema, found: pa.Schema, *, of_known: str, of_found: str) -> pa.Schema:
    """The one schema of both; `SinkError` naming the columns that are not alike, and whose they are.

    The order of columns is that of ``known``.
    """
    import pyarrow as pa

    drifted = [f"{name!r} (only {of_known})" for name in known.names if name not in found.names]
    drifted += [f"{name!r} (only {of_found})" for name in found.names if name not in known.names]
    fields = []
    for name in (name for name in known.names if name in found.names):
        mine, other = known.field(name).type, found.field(name).type
        kind = joined_type(mine, other)
        fields.append((name, kind))
        if kind is None:
            drifted.append(f"{name!r} ({mine} {of_known}, {other} {of_found})")
    if drifted:
        raise SinkError(
            f"the columns are not alike: {_listed(drifted)}. Give every value the same fields and types in a map step, "
            f"or say which ones with Spark(schema=)"
        )
    return pa.schema(fields)


def given_schema(schema: Any) -> pa.Schema:
    """What ``sinks.Spark(schema=)`` gave, in types that Spark reads; `PlanError` if it cannot be."""
    import pyarrow as pa

    if not isinstance(schema, pa.Schema):
        if not type(schema).__module__.startswith("pyspark.") or type(schema).__name__ != "StructType":
            raise PlanError(
                f"sinks.Spark: schema must be a pyarrow.Schema or a StructType, got {type(schema).__name__}"
            )
        schema = arrow_schema(schema, error=PlanError)
    try:
        return in_files(schema_for_spark(schema_of_files(schema, "sinks.Spark")))
    except SinkError as error:
        raise PlanError(f"sinks.Spark: schema: {error}") from None


def _spark_type(path: str, kind: pa.DataType) -> pa.DataType:
    if within := inside(kind):
        if kind_of(kind) is ColumnKind.STRUCT:
            _check_names([field.name for field in kind], f"fields of column {path!r}")
        return with_inside(kind, [_spark_type(f"{path}{place}", inner) for place, inner in within])
    found = spark_form(kind)
    if found is None:
        raise SinkError(
            f"column {path!r} holds {kind}, for which Spark has no type: make it text or a number in a map step"
        )
    return found


def _check_names(names: Sequence[str], what: str) -> None:
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise SinkError(
                f"the {what} {other!r} and {name!r} differ in case only, and Spark treats them as one: rename one"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return ", ".join(names[:_LISTED_MAX]) + more


@dataclass(frozen=True, slots=True)
class Existing:
    """What a folder holds: the schema of its files, and the columns that its folders are named by.

    ``partition_by`` is None where there are no rows yet: ``schema`` has all columns then.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...] | None


def schema_of_staged(staged: Sequence[StagedFile]) -> pa.Schema | None:
    """The schema of what several workers have pre-committed; None if they wrote nothing.

    Raises:
        SinkError: a column is of two types, or not everywhere; or a payload is damaged.
    """
    schemas = list(map(unpacked_schema, packed_schemas(staged)))
    if not schemas:
        return None
    schema = schemas[0]
    for other in schemas[1:]:
        schema = joined_schema(schema, other, of_known="on one worker", of_found="on another")
    return schema


def existing_in(folder: Path) -> Existing | None:
    """Return the schema of the first Parquet file with rows in ``folder``; None if there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    empty = None
    with sink_errors("cannot look into", folder):
        for here, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if "=" in name or not name.startswith(("_", ".")))
            for name in sorted(files):
                if not name.endswith(".parquet") or name.startswith(("_", ".")):
                    continue
                try:
                    footer = pq.read_metadata(Path(here) / name)
                except pa.ArrowException as error:
                    raise SinkError(
                        f"{Path(here) / name} is not a readable Parquet file: {describe_error(error)}"
                    ) from None
                parts = Path(here).relative_to(folder).parts
                named = tuple(told[0] for part in parts if (told := parse_folder(part)) is not None)
                schema = _as_spark_reads(footer.schema.to_arrow_schema())
                if footer.num_rows or named:
                    return Existing(schema, named)
                empty = empty or Existing(schema, None)
    return empty


def appended_schema(schema: pa.Schema, partition_by: Sequence[str], there: Existing, folder: Path) -> pa.Schema:
    """The schema in which files of ``schema`` are appended to what is in ``folder``; `SinkError` if it is another."""
    check_partitions(partition_by, there, folder)
    known = there.schema if there.partition_by is not None else without(there.schema, partition_by)
    joined = joined_schema(known, schema, of_known=f"in {folder}", of_found="now")
    changed = [name for name in joined.names if joined.field(name).type != known.field(name).type]
    if changed:
        narrower = ", ".join(map(repr, changed))
        raise SinkError(
            f"the columns {narrower} are narrower in {folder} than what is appended: cast them in a map step"
        )
    return joined


def without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """``schema`` without the columns ``names``."""
    import pyarrow as pa

    return pa.schema([field for field in schema if field.name not in names])


def check_partitions(partition_by: Sequence[str], there: Existing, folder: Path) -> None:
    """`SinkError` if the folders there are named by other columns."""
    if there.partition_by is not None and tuple(partition_by) != there.partition_by:
        raise SinkError(
            f"{folder} is partitioned by {list(there.partition_by)}, and partition_by is {list(partition_by)}: "
            f"give the same columns, in that order"
        )


def _as_spark_reads(schema: pa.Schema) -> pa.Schema:
    """``schema`` of a file that is there: INT96, in which Spark writes instants, is nanoseconds to Arrow."""
    import pyarrow as pa

    instants = pa.timestamp("ns")
    fields = [(field.name, pa.timestamp("us", "UTC") if field.type == instants else field.type) for field in schema]
    return schema_for_spark(pa.schema(fields))


class SparkEncoder(ParquetEncoder):
    """Encodes the columns of ``given``, else of the first batch. ``known``: their types so far, as Spark's types."""

    def __init__(self, files: RollingFiles, partition_by: Sequence[str], given: TargetColumns | None) -> None:
        super().__init__(files, partition_by, None if given is None else GivenColumns(given))
        self._seen: pa.Schema | None = None
        self.known: pa.Schema | None = None

    def _check(self, schema: pa.Schema) -> None:
        if self._seen is not None and self._seen.equals(schema):
            return
        found = schema_for_spark(schema)
        if self.known is not None:
            found = joined_schema(self.known, found, of_known="before", of_found="now")
        self._seen, self.known = schema, found

    def packed_schema(self) -> str | None:
        return None if self.known is None else packed(self.known)

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        import pyarrow as pa

        return without_nulls(schema_for_spark(pa.schema([("", kind)])).field(0).type)
