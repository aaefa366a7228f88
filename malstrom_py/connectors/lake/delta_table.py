"""The log of a Delta table: its columns, which features it uses, and commits.

Rules:
- A commit notes (application, version) in the transaction that adds the files: the application is a step of a job, the
  version the number of a snapshot. The library does not refuse a version that is noted already, so it is read first,
  and a commit that loses a race is not repeated by the library but from here, after reading again.
- Statistics are bounds that are certainly right: none of floats, whose NaN Parquet leaves out, and none of long texts.
- What this module does not know how to write, it refuses when the job starts.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from malstrom_py.connectors.lake.delta_location import Location, said
from malstrom_py.connectors.lake.files import LakeFile
from malstrom_py.connectors.lake.repeating import repeat
from malstrom_py.connectors.lake.types import Seen, Shape, check_new_names, new_columns, table_fields
from malstrom_py.connectors.lake.upserts import DELETES
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.partitions import check_type

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import CommitProperties
    from deltalake import DeltaTable as Opened

_WRITER_LEGACY_MAX: Final = 6
_WRITER_FEATURES: Final = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "generatedColumns",
    "identityColumns",
    "invariants",
    "timestampNtz",
}
"""Features that change nothing for appended files, and those whose use in a table is looked up."""

_COLUMN_RULES: Final = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "an identity",
    "delta.identity.step": "an identity",
    "CURRENT_DEFAULT": "a default",
}
_ILLEGAL: Final = " ,;{}()\n\t="
_STATS_COLUMNS_MAX: Final = 32
_STATS_TEXT_MAX: Final = 64


class DeltaTable:
    """The table at ``location``. ``partition_by``: of a new table, and required of one that exists, if given."""

    def __init__(self, location: Location, *, partition_by: Sequence[str] = (), adds_columns: bool = False) -> None:
        self._location = location
        self._partition_by = tuple(partition_by)
        self._adds_columns = adds_columns
        self._where = f"the Delta table {location}"

    def look(self, app: str) -> Seen | None:
        """See `LakeTable.look`."""
        table = self._opened()
        return None if table is None else Seen(self._shape_of(table), table.transaction_version(app))

    def ensure(self, schema: pa.Schema) -> Shape:
        """See `LakeTable.ensure`."""

        def attempt() -> Shape | None:
            table = self._opened()
            if table is None:
                self._create(schema)
                return None
            shape = self._shape_of(table)
            added = new_columns(schema, shape.schema.names)
            if not added:
                return shape
            with self._errors("cannot get further columns"):
                self._add_columns(table, shape, added)
            return None

        return repeat(attempt, _lost, self._where)

    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> str:
        """See `LakeTable.describe`."""
        return stats_of(shape.file_schema, metadata)

    def commit(self, app: str, number: int, files: Sequence[LakeFile]) -> bool:
        """See `LakeTable.commit`."""

        def add(table: Opened, noted: CommitProperties) -> None:
            partition_by = list(table.metadata().partition_columns)
            actions = [_action(file, partition_by) for file in files]
            table.create_write_transaction(actions, "append", table.schema(), partition_by, commit_properties=noted)

        return self._change(app, number, add)

    def merge(self, app: str, number: int, rows: pa.Table, keys: Sequence[str]) -> bool:
        """See `MergedTable.merge`."""
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in rows.schema.names if name != DELETES}
        same = " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)

        def merge(table: Opened, noted: CommitProperties) -> None:
            merger = table.merge(rows, same, "s", "t", streamed_exec=False, commit_properties=noted)
            deleting = f"s.{DELETES}"
            merger = merger.when_matched_delete(deleting).when_matched_update(columns, f"NOT {deleting}")
            merger.when_not_matched_insert(columns, f"NOT {deleting}").execute()

        return self._change(app, number, merge)

    def _change(self, app: str, number: int, change: Callable[[Opened, CommitProperties], None]) -> bool:
        """Change the table and note ``number`` in one commit, unless this or a larger number is noted."""
        from deltalake import CommitProperties, Transaction

        def attempt() -> bool:
            table = self._opened()
            if table is None:
                raise SinkError(f"{self._where} is not there, but rows were written for it: restore it")
            known = table.transaction_version(app)
            if known is not None and known >= number:
                return known == number
            noted = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(app, number)])
            with self._errors("does not take a commit"):
                change(table, noted)
            return True

        return repeat(attempt, _lost, self._where)

    def contains(self, path: str) -> bool:
        """See `LakeTable.contains`."""
        import pyarrow as pa

        table = self._opened()
        if table is None:
            return False
        # The log has the paths as URLs. Those with the folder of the table would have that as a URL, too.
        paths = pa.table(table.get_add_actions()).column("path").to_pylist()
        return path in map(unquote, paths)

    def _opened(self) -> Opened | None:
        with self._errors("cannot be read"):
            return self._location.open()

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raise errors of the library as a `SinkError`, but for a commit that lost a race."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            yield
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            raise SinkError(f"{self._where} {what}: {said(error)}") from None

    def _shape_of(self, table: Opened) -> Shape:
        import pyarrow as pa

        refusal = why_not_written(table)
        if refusal is not None:
            raise SinkError(f"{self._where} cannot be written by sinks.Delta: {refusal}. Write to another table")
        partition_by = tuple(table.metadata().partition_columns)
        if self._partition_by and partition_by != self._partition_by:
            raise SinkError(
                f"{self._where} is partitioned by {list(partition_by)}, and partition_by is {list(self._partition_by)}"
            )
        return Shape(
            self._where, pa.schema(table.schema().to_arrow()), partition_by, self._location.place, in_files=False
        )

    def _create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        fields = self._fields(new_columns(schema, ()), ())
        missing = [name for name in self._partition_by if name not in {field.name for field in fields}]
        if missing:
            raise SinkError(
                f"no value of partition column {missing[0]!r} is among the first rows, so {self._where} cannot be "
                f"created: create it before the job starts, or give all rows the column"
            )
        for field in fields:
            if field.name in self._partition_by:
                check_type(field.name, field.type)
        if len(fields) == len(self._partition_by):
            raise SinkError(f"{self._where} cannot be created: no column besides the partition columns has a value yet")
        if isinstance(self._location.root, Path):
            self._location.root.mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(
                str(self._location),
                Schema.from_arrow(_arrow_schema(fields)),
                mode="error",
                partition_by=list(self._partition_by),
                storage_options=self._location.storage_options,
            )
        except (DeltaError, OSError) as error:
            if self._opened() is None:  # else another writer has created it in the meantime
                raise SinkError(f"{self._where} cannot be created: {said(error)}") from None

    def _add_columns(self, table: Opened, shape: Shape, added: Sequence[pa.Field]) -> None:
        from deltalake import CommitProperties, Schema

        names = ", ".join(repr(field.name) for field in added)
        if not self._adds_columns:
            raise SinkError(
                f"{self._where} has no column {names}: drop it in a map step, or give sinks.Delta new_columns='add'"
            )
        fields = Schema.from_arrow(_arrow_schema(self._fields(added, shape.schema.names))).fields
        table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))

    def _fields(self, fields: Sequence[pa.Field], known: Sequence[str]) -> list[pa.Field]:
        check_new_names(fields, known, self._where, _ILLEGAL)
        return table_fields(fields, "Delta", has_times=False)


def _quoted(name: str) -> str:
    """Return the name of a column as an expression."""
    return "`" + name.replace("`", "``") + "`"


def _action(file: LakeFile, partition_by: Sequence[str]) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=dict(zip(partition_by, file.values, strict=True)),
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=file.stats,
    )


def _arrow_schema(fields: Sequence[pa.Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(fields)


def _lost(error: Exception) -> str | None:
    from deltalake.exceptions import CommitFailedError

    return said(error) if isinstance(error, CommitFailedError) else None


def why_not_written(table: Opened) -> str | None:
    """Return why files written here would not be right in ``table``; None if they would."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    features = set(protocol.writer_features or ())
    if protocol.min_writer_version > _WRITER_LEGACY_MAX + 1:
        return f"it needs writer version {protocol.min_writer_version}"
    if unknown := sorted(features - _WRITER_FEATURES):
        return f"it uses {', '.join(unknown)}"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "its columns have other names in files (column mapping)"
    if names := sorted(name for name in configuration if name.startswith("delta.constraints.")):
        return f"it has the constraint {names[0].removeprefix('delta.constraints.')!r}, which is not checked here"
    if "delta.setTransactionRetentionDuration" in configuration:
        return "it forgets who has committed (delta.setTransactionRetentionDuration)"
    for field in table.schema().fields:
        for rule, what in _COLUMN_RULES.items():
            if rule in field.metadata or rule in json.dumps(json.loads(field.to_json()).get("type")):
                return f"its column {field.name!r} has {what}, which is not computed or checked here"
    return None


def stats_of(schema: pa.Schema, metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file for the log, as JSON."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    indexed = {field.name: field.type for field in list(schema)[:_STATS_COLUMNS_MAX]}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in indexed or indexed[name].num_fields:
            continue
        found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        bounds = _bounds(kind_of(indexed[name]), [one for one in found if one.num_values])
        if bounds is not None:
            lowest[name], highest[name] = bounds
    return json.dumps({"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def _bounds(kind: ColumnKind, found: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return bounds of all values, in the form of the log; None if there are none that are certain."""
    if not found or not all(one.has_min_max for one in found):
        return None
    try:
        low, high = min(one.min for one in found), max(one.max for one in found)
    except (ValueError, OverflowError, TypeError):  # a time that Python cannot hold
        return None
    if kind is ColumnKind.INT:
        return int(low), int(high)
    if kind is ColumnKind.DATE and isinstance(low, date):
        return low.isoformat(), high.isoformat()
    if kind is ColumnKind.STR and max(len(low), len(high)) <= _STATS_TEXT_MAX:
        return low, high
    if kind in {ColumnKind.NAIVE, ColumnKind.ZONED} and isinstance(low, datetime):
        return _moments(low, high, "Z" if kind is ColumnKind.ZONED else "")
    return None


def _moments(low: datetime, high: datetime, zone: str) -> tuple[str, str] | None:
    """Return bounds of times in whole milliseconds, which some readers assume."""
    try:
        above = high.replace(tzinfo=None) + timedelta(milliseconds=1)
    except OverflowError:
        return None
    low = low.replace(tzinfo=None)
    return f"{low.isoformat(timespec='milliseconds')}{zone}", f"{above.isoformat(timespec='milliseconds')}{zone}"
