"""``Iceberg``: a source over one snapshot of an Iceberg table, and over those that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.lake.follow import changes_rows, not_followed
from malstrom_py.connectors.lake.iceberg_catalog import (
    S3,
    CatalogAccess,
    checked_catalog,
    checked_table,
    opened,
    require_pyiceberg,
    why_not_known,
)
from malstrom_py.connectors.lake.source import LakeSource, TableFile, TableVersion, partition_text
from malstrom_py.errors import SourceError
from malstrom_py.sources.pinned.row_groups import PinnedFile

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

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

    ``follow=True``: the source has no end, see `Delta`. The rows are those of the main branch.

    Each row group is a partition, which moves when a job is rescaled. Rows keep their order within a row group;
    partitions have no order. Values: dicts, column -> value, or columns for steps that take these, as `sources.Files`
    gives them for Parquet. A column that a file lacks is None.

    PlanError: an argument is wrong, or pyiceberg is not installed. SourceError: the catalog does not answer, there is
    no such table, snapshot or column, files of the snapshot were removed, rows were deleted by delete files, or a
    column was renamed after a file was written.

    >>> Iceberg("flights.delays", catalog={"type": "in-memory"}, columns=["delay"])
    Iceberg('flights.delays', columns=['delay'])
    """

    kind, version_name = "Iceberg", "snapshot"

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str] = "default",
        snapshot: int | None = None,
        columns: Iterable[str] | None = None,
        filter: Any = None,
        store_options: Mapping[str, str] | None = None,
        follow: bool = False,
    ) -> None:
        require_pyiceberg("sources.Iceberg")
        name = checked_table(table, "sources.Iceberg")
        self._catalog = found = checked_catalog(catalog, store_options, "sources.Iceberg")
        super().__init__(name, snapshot, columns, filter, found.store_options, follow)

    def _log(self, names: Sequence[str], table_id: str) -> IcebergLog:
        return IcebergLog(self._name, self._catalog, names)

    def _find_version(self) -> TableVersion:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        with opened(self._catalog, SourceError) as catalog:
            table = _loaded(catalog, self._name)
            now = table.current_snapshot()
            number = self._version or (0 if now is None else now.snapshot_id)
            if number and table.snapshot_by_id(number) is None:
                raise SourceError(
                    f"{self._where} has no snapshot {number}: it has expired, or never was. Read a later one"
                )
            where = f"snapshot {number} of {self._where}"
            scan = table.scan(snapshot_id=number or None)
            # A snapshot that was asked for has the columns of its time.
            schema = table.schema() if self._version is None else scan.projection()
            ids = {field.name: field.field_id for field in schema.fields}
            tasks = list(scan.plan_files()) if number else []
            if any(task.delete_files for task in tasks):
                raise SourceError(f"rows of {where} are deleted by delete files, which are not read: rewrite its files")
            files = [_file(table, schema, task.file, where) for task in tasks]
        return TableVersion(where, number, schema_to_pyarrow(schema, include_field_ids=False), files, ids)


class IcebergLog:
    """The snapshots of the main branch of the table ``name``, of which the columns ``names`` are read.

    A place is the id of the last snapshot that was read; 0 before the first.
    """

    def __init__(self, name: str, catalog: CatalogAccess, names: Sequence[str]) -> None:
        self._name = name
        self._catalog = catalog
        self._names = names

    def place_after(self, version: int) -> int:
        """See `TableLog`."""
        return version

    def read(self, place: int) -> tuple[list[PinnedFile], int] | None:
        """See `TableLog`."""
        with opened(self._catalog, SourceError) as catalog:
            table = _loaded(catalog, self._name)
            snapshot = self._after(table, place)
            if snapshot is None:
                return None
            self._check_names(table)
            return self._added(table, snapshot), snapshot.snapshot_id

    def _after(self, table: Table, place: int) -> Snapshot | None:
        """Return the snapshot that follows on ``place``; None if there is none yet."""
        known = {one.snapshot_id: one for one in table.metadata.snapshots}
        found = table.current_snapshot()
        if found is None and not place:
            return None
        while found is not None:
            if found.snapshot_id == place:
                return None
            if (found.parent_snapshot_id or 0) == place:
                return found
            found = known.get(found.parent_snapshot_id or 0)
        raise not_followed(
            f"what follows on snapshot {place} of the Iceberg table {self._name} is not known any more: the table was "
            f"rolled back, or snapshots have expired. Keep them for longer"
        )

    def _added(self, table: Table, snapshot: Snapshot) -> list[PinnedFile]:
        from pyiceberg.manifest import DataFileContent, ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        where = f"snapshot {snapshot.snapshot_id} of the Iceberg table {self._name}"
        if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE:
            return []  # files were rewritten with the same rows
        added = []
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status is ManifestEntryStatus.EXISTING:
                    continue
                if entry.status is ManifestEntryStatus.DELETED or entry.data_file.content is not DataFileContent.DATA:
                    raise changes_rows(where, "Iceberg")
                file = _file(table, table.schema(), entry.data_file, where)
                added.append(PinnedFile(file.path, entry.data_file.file_size_in_bytes, 0, (), file.values))
        return added

    def _check_names(self, table: Table) -> None:
        """Raise `SourceError` if a column has ever had another name: files have the names of when they were written."""
        known = {(field.name, field.field_id) for schema in table.schemas().values() for field in schema.fields}
        for name in self._names:
            ids = {number for other, number in known if other == name}
            if len(ids) > 1 or any(other != name for other, number in known if number in ids):
                raise not_followed(
                    f"column {name!r} of the Iceberg table {self._name} was renamed, or dropped and added again: leave "
                    f"it out with columns="
                )


def _loaded(catalog: Catalog, name: str) -> Table:
    """Return the newest version of the table; `SourceError` if there is none that can be read."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        raise SourceError(f"there is no Iceberg table {name} in the catalog: check the name") from None
    refusal = why_not_known(table)
    if refusal is not None:
        raise SourceError(f"the Iceberg table {name} cannot be read by sources.Iceberg: {refusal}")
    return table


def _file(table: Table, schema: Schema, file: DataFile, where: str) -> TableFile:
    path = file.file_path
    path = path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")
    if not Path(path).is_absolute() and not path.startswith(S3):
        raise SourceError(f"{where} has files neither on this machine nor in S3, which sources.Iceberg needs")
    if str(file.file_format) not in {"PARQUET", "FileFormat.PARQUET"}:
        raise SourceError(f"{where} has files of a format other than Parquet: rewrite its files")
    spec, values = table.specs()[file.spec_id], {}
    for index, field in enumerate(spec.fields):
        name = schema.find_column_name(field.source_id)
        kind = "" if name is None else str(schema.find_type(field.source_id))
        if name is not None and str(field.transform) == "identity" and kind in _KNOWN:
            value = file.partition[index]
            is_day = kind == "date" and isinstance(value, int)
            values[name] = partition_text(_EPOCH + timedelta(days=value) if is_day else value)
    return TableFile(path, values)
