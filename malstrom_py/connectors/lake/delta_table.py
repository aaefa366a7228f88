"""The log of a Delta table: its columns, which features it uses, and commits.

Rules:
- A commit notes (application, version) in the transaction that adds the files: the application is a step of a job, the
  version the number of a snapshot. The library does not refuse a version that is noted already.
- Statistics are bounds that are certainly right: none of floats, whose NaN Parquet leaves out, and none of long texts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from malstrom_py.connectors.lake.delta_location import Location, said
from malstrom_py.connectors.lake.table import LakeFile, LakeTable
from malstrom_py.connectors.lake.types import Shape
from malstrom_py.connectors.lake.upserts import DELETES
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import CommitProperties, Schema
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
_STATS_COLUMNS_MAX: Final = 32
_STATS_TEXT_MAX: Final = 64


class DeltaTable(LakeTable[None, "Opened"]):
    """The table at ``location``."""

    kind, illegal, has_times, in_files = "Delta", " ,;{}()\n\t=", False, False

    def __init__(
        self, location: Location, partition_by: str | Sequence[str] | None = None, new_columns: str = "error"
    ) -> None:
        super().__init__(str(location), partition_by, new_columns)
        self._location = location

    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> str:
        return stats_of(shape.file_schema, metadata)

    def _session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _find(self, session: None) -> Opened | None:
        with self._errors("cannot be read"):
            return self._location.open()

    def _noted(self, table: Opened, app: str) -> int | None:
        return table.transaction_version(app)

    def _shape(self, table: Opened) -> Shape:
        import pyarrow as pa

        refusal = why_not_written(table)
        if refusal is not None:
            raise self._refused(refusal)
        partition_by = tuple(table.metadata().partition_columns)
        schema = pa.schema(table.schema().to_arrow())
        return Shape(self.where, schema, partition_by, self._location.place, in_files=self.in_files)

    def _create(self, session: None, fields: Sequence[pa.Field]) -> None:
        from deltalake import DeltaTable

        if isinstance(self._location.root, Path):
            self._location.root.mkdir(parents=True, exist_ok=True)
        try:
            with self._errors("cannot be created"):
                DeltaTable.create(
                    self.name,
                    _schema_of(fields),
                    mode="error",
                    partition_by=list(self.partition_by),
                    storage_options=self._location.storage_options,
                )
        except SinkError:
            if self._find(None) is None:  # else another writer has created it in the meantime
                raise

    def _add_columns(self, table: Opened, fields: Sequence[pa.Field]) -> None:
        from deltalake import CommitProperties

        with self._errors("cannot get further columns"):
            table.alter.add_columns(_schema_of(fields).fields, commit_properties=CommitProperties(max_commit_retries=0))

    def _add(self, table: Opened, app: str, number: int, files: Sequence[LakeFile]) -> None:
        partition_by = list(table.metadata().partition_columns)
        actions = [_action(file, partition_by) for file in files]
        noted = _noting(app, number)
        with self._errors("does not take a commit"):
            table.create_write_transaction(actions, "append", table.schema(), partition_by, commit_properties=noted)

    def _merge(self, table: Opened, app: str, number: int, rows: pa.Table, keys: Sequence[str]) -> None:
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in rows.schema.names if name != DELETES}
        same = " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)
        deleting, noted = f"s.{DELETES}", _noting(app, number)
        with self._errors("does not take a commit"):
            merger = table.merge(rows, same, "s", "t", streamed_exec=False, commit_properties=noted)
            merger = merger.when_matched_delete(deleting).when_matched_update(columns, f"NOT {deleting}")
            merger.when_not_matched_insert(columns, f"NOT {deleting}").execute()

    def _has(self, table: Opened, path: str) -> bool:
        import pyarrow as pa

        # The log has the paths as URLs. Those with the folder of the table would have that as a URL, too.
        return path in map(unquote, pa.table(table.get_add_actions()).column("path").to_pylist())

    def _why_lost(self, error: Exception) -> str | None:
        from deltalake.exceptions import CommitFailedError

        return said(error) if isinstance(error, CommitFailedError) else None

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raise errors of the library as a `SinkError`, but for a commit that lost a race."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            yield
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            raise SinkError(f"{self.where} {what}: {said(error)}") from None


def _noting(app: str, number: int) -> CommitProperties:
    """Return the properties of a commit that notes ``number``."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(max_commit_retries=0, app_transactions=[Transaction(app, number)])


def _schema_of(fields: Sequence[pa.Field]) -> Schema:
    import pyarrow as pa
    from deltalake import Schema

    return Schema.from_arrow(pa.schema(fields))


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
