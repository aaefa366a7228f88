"""``Iceberg``: a source over one snapshot of an Iceberg table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.lake.iceberg_catalog import (
    S3,
    checked_catalog,
    checked_table,
    opened,
    require_pyiceberg,
    why_not_known,
)
from malstrom_py.connectors.lake.source import LakeSource, TableFile, TableVersion, checked_version
from malstrom_py.errors import SourceError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_EPOCH: Final = date(1970, 1, 1)
_KNOWN: Final = {"string", "int", "long", "boolean", "date"}


class Iceberg(LakeSource):
    """A source over one snapshot of an Iceberg table, with exact positions in each row group.

    The rows are those of ``snapshot`` (its id), by default the newest when the job starts. Snapshots of the job contain
    the files: a resumed job reads the same rows, also if the table has changed since.

    ``table``: its id, ``"namespace.table"``. ``catalog``: the name of a catalog in pyiceberg's configuration, or its
    properties (str -> str). The table's files are local (paths or ``file://…``) and shared by all workers, or in S3;
    then ``store_options`` are those of `sources.Files` (needs the extra ``objects``), and are given to pyiceberg too.
    ``columns``: the columns to read, in this order; a plan that reads fewer reads only these. ``filter``: an expression
    of ``pyarrow.compute``; row groups whose statistics exclude it are not read. A row for which it is null is left out.

    Each row group is a partition, which moves when a job is rescaled. Rows keep their order within a row group;
    partitions have no order. Values: dicts, column -> value, or columns for steps that take these, as `sources.Files`
    gives them for Parquet. A column that a file lacks is None.

    PlanError: an argument is wrong, or pyiceberg is not installed. SourceError: the catalog does not answer, there is
    no such table, snapshot or column, files of the snapshot were removed, rows were deleted by delete files, or a
    column was renamed after a file was written.

    >>> Iceberg("flights.delays", catalog={"type": "in-memory"}, columns=["delay"])
    Iceberg('flights.delays', columns=['delay'])
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str] = "default",
        snapshot: int | None = None,
        columns: Iterable[str] | None = None,
        filter: Any = None,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        require_pyiceberg("sources.Iceberg")
        self._name = checked_table(table, "sources.Iceberg")
        self._catalog = found = checked_catalog(catalog, store_options, "sources.Iceberg")
        super().__init__("sources.Iceberg", columns, filter, found.store_options)
        self._snapshot = checked_version(snapshot, "sources.Iceberg: snapshot")

    def __repr__(self) -> str:
        snapshot = "" if self._snapshot is None else f", snapshot={self._snapshot}"
        return f"Iceberg({self._name!r}{snapshot}{self._chosen()})"

    def _find_version(self) -> TableVersion:
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        where = f"the Iceberg table {self._name}"
        with opened(self._catalog, SourceError) as catalog:
            try:
                table = catalog.load_table(self._name)
            except NoSuchTableError:
                raise SourceError(f"there is no Iceberg table {self._name} in the catalog: check the name") from None
            refusal = why_not_known(table)
            if refusal is not None:
                raise SourceError(f"{where} cannot be read by sources.Iceberg: {refusal}")
            now = table.current_snapshot()
            number = self._snapshot or (0 if now is None else now.snapshot_id)
            if number and table.snapshot_by_id(number) is None:
                raise SourceError(f"{where} has no snapshot {number}: it has expired, or never was. Read a later one")
            where = f"snapshot {number} of {where}"
            scan = table.scan(snapshot_id=number or None)
            # A snapshot that was asked for has the columns of its time.
            schema = table.schema() if self._snapshot is None else scan.projection()
            ids = {field.name: field.field_id for field in schema.fields}
            files = [self._file(table, schema, task, where) for task in scan.plan_files()] if number else []
        return TableVersion(where, number, schema_to_pyarrow(schema, include_field_ids=False), files, ids)

    def _file(self, table: Table, schema: Schema, task: Any, where: str) -> TableFile:
        path = task.file.file_path
        path = path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")
        if not Path(path).is_absolute() and not path.startswith(S3):
            raise SourceError(f"{where} has files neither on this machine nor in S3, which sources.Iceberg needs")
        if task.delete_files:
            raise SourceError(f"rows of {where} are deleted by delete files, which are not read: rewrite its files")
        if str(task.file.file_format) not in {"PARQUET", "FileFormat.PARQUET"}:
            raise SourceError(f"{where} has files of a format other than Parquet: rewrite its files")
        spec, values = table.specs()[task.file.spec_id], {}
        for index, field in enumerate(spec.fields):
            name = schema.find_column_name(field.source_id)
            kind = "" if name is None else str(schema.find_type(field.source_id))
            if name is not None and str(field.transform) == "identity" and kind in _KNOWN:
                values[name] = _text(task.file.partition[index], kind)
        return TableFile(path, values)


def _text(value: Any, kind: str) -> str | None:
    if value is None:
        return None
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "date" and isinstance(value, int):
        return (_EPOCH + timedelta(days=value)).isoformat()
    return str(value)
