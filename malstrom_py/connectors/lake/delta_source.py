"""``Delta``: a source over one version of a Delta table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from malstrom_py.connectors.lake.delta_location import location_of, said
from malstrom_py.connectors.lake.delta_log import CHANGE_TYPE, FEED, DeltaLog, why_not_read
from malstrom_py.connectors.lake.source import LakeSource, TableFile, TableVersion, partition_text
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.object_stores import is_object_url
from malstrom_py.validation import checked_flag

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_KNOWN: Final = (str, int, date, type(None))
_KINDS: Final = {ColumnKind.STR, ColumnKind.INT, ColumnKind.BOOL, ColumnKind.DATE}


class Delta(LakeSource):
    """A source over one version of the Delta table at ``uri``, with exact positions in each row group.

    The rows are those of ``version``, by default the newest when the job starts. Snapshots contain the version's files:
    a resumed job reads the same rows, also if the table has changed since.

    ``uri``: a path or ``file://…`` that all workers share, or the URL of a folder of an object store, such as
    ``s3://bucket/table``, with ``store_options`` as `sources.Files` takes them (needs the extra ``objects``).
    ``columns``: the columns to read, in this order; a plan that reads fewer reads only these. ``filter``: an expression
    of ``pyarrow.compute``; files and row groups whose partition values or statistics exclude it are not read. A row for
    which it is null is left out.

    ``follow=True``: the source has no end. After the version it reads the rows that each later one adds, in the order
    of the log, as one more partition. A later version that changes or deletes rows is a SourceError, unless
    ``changes=True`` reads the change feed of the table: rows have a column ``_change_type`` ("insert", "delete",
    "update_preimage" or "update_postimage"), and all are one partition: a change comes after the row that it changes.

    Each row group is a partition, which moves when a job is rescaled. Rows keep their order within a row group;
    partitions have no order. Values: dicts, column -> value, or columns for steps that take these, as `sources.Files`
    gives them for Parquet. A column that a file lacks is None.

    PlanError: an argument is wrong, or deltalake is not installed. SourceError: there is no such table, version or
    column, files of the version were vacuumed, or the table uses what is not read here (column mapping, deletion
    vectors, other features).

    >>> Delta("/data/flights", columns=["carrier", "delay"])
    Delta('/data/flights', columns=['carrier', 'delay'])
    """

    kind = "Delta"

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        version: int | None = None,
        columns: Iterable[str] | None = None,
        filter: Any = None,
        store_options: Mapping[str, str] | None = None,
        follow: bool = False,
        changes: bool = False,
    ) -> None:
        self._location = at = location_of(uri, store_options, "sources.Delta")
        super().__init__(str(at), version, columns, filter, at.options, follow)
        self._changes = self.is_in_order = checked_flag(changes, "sources.Delta: changes")
        if changes and not follow:
            raise PlanError("sources.Delta: changes=True reads what later versions change, and needs follow=True")
        if changes and self._columns is not None and CHANGE_TYPE not in self._columns:
            self._columns = (*self._columns, CHANGE_TYPE)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}{', changes=True' if self._changes else ''})"

    def _log(self, names: Sequence[str], table_id: str) -> DeltaLog:
        return DeltaLog(self._location, self._base, self._path, table_id=table_id, changes=self._changes)

    def _find_version(self) -> TableVersion:
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        where = self._where
        asked = "" if self._version is None else f" at version {self._version}"
        try:
            table = self._location.open(self._version)
        except DeltaError as error:
            raise SourceError(
                f"{where} cannot be read{asked}: {said(error)}. Read a version that its log still has"
            ) from None
        except OSError as error:
            raise SourceError(f"{where} cannot be read: {said(error)}. Check its store and the credentials") from None
        if table is None:
            raise SourceError(f"there is no Delta table in {self._location}{asked}: check the path")
        refusal = _why_not_read(table)
        if refusal is not None:
            raise SourceError(f"{where} cannot be read by sources.Delta: {refusal}. Rewrite the table without it")
        if self._changes and table.metadata().configuration.get(FEED) != "true":
            raise SourceError(f"{where} has no change feed, which changes=True reads: set its property {FEED} to true")
        where = f"version {table.version()} of {where}"
        schema = pa.schema(table.schema().to_arrow())
        if self._changes:
            schema = schema.append(pa.field(CHANGE_TYPE, pa.string()))
        table_id = str(table.metadata().id)
        return TableVersion(where, table.version(), schema, self._files(table, where, schema), table_id=table_id)

    def _files(self, table: DeltaTable, where: str, schema: pa.Schema) -> list[TableFile]:
        import pyarrow as pa

        actions = pa.table(table.get_add_actions(flatten=False))
        names = table.metadata().partition_columns
        paths = actions.column("path").to_pylist()
        values = actions.column("partition").to_pylist() if names else [{}] * len(paths)
        for name in names:
            is_known = all(isinstance(one[name], _KNOWN) and not isinstance(one[name], datetime) for one in values)
            # Later files may have values that the present ones lack.
            if not is_known or (self._follow and kind_of(schema.field(name).type) not in _KINDS):
                raise SourceError(
                    f"{where} is partitioned by {name!r}, whose type is not read here (str, int, bool and date are): "
                    f"rewrite the table"
                )
        known = {CHANGE_TYPE: "insert"} if self._changes else {}
        return [
            TableFile(self._path(path), known | {name: partition_text(found[name]) for name in names})
            for path, found in zip(paths, values, strict=True)
        ]

    def _path(self, path: str) -> str:
        """Return the path or URL of a file, which the log writes as a URL, relative to the table or not."""
        name = unquote(path.removeprefix("file://"))
        return name if name.startswith("/") or is_object_url(name) else self._location.file(name)


def _why_not_read(table: DeltaTable) -> str | None:
    """Return why the files of ``table`` are not its rows; None if they are."""
    protocol = table.protocol()
    features = protocol.reader_features or ()
    refusal = why_not_read(protocol.min_reader_version, features, table.metadata().configuration)
    if refusal is None and "deletionVectors" in features:
        vectors = getattr(table, "deletion_vectors", None)
        if vectors is None or any(len(batch) for batch in vectors()):
            return "rows of it are deleted by deletion vectors"
    return refusal
