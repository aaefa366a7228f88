"""Pinned Parquet files: each row group is a partition, in rows of one schema, without those that a filter excludes.

Rule: a file is read only while its size and time of last change are those that were pinned. The files of a table are
never written again, and are copied from store to store: of these, the size counts alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError
from malstrom_py.object_stores import is_object_url
from malstrom_py.sources.base import Part, SourcePart
from malstrom_py.sources.files import OBJECTS_OPEN_MAX
from malstrom_py.sources.files.ahead import AheadPart
from malstrom_py.sources.files.footers import Footers, needed_columns
from malstrom_py.sources.files.listing import Section, section_of
from malstrom_py.sources.files.objects import ObjectFolders, ObjectPath
from malstrom_py.sources.files.options import pack_schema, unpack_schema
from malstrom_py.sources.files.parquet import Filter, ParquetPart
from malstrom_py.sources.files.reading import LazyPart, source_errors
from malstrom_py.sources.files.streams import Status
from malstrom_py.sources.pinned.source import Pinned, packed_bytes, packed_text

if TYPE_CHECKING:
    import pyarrow as pa

_OPEN_MAX: Final = 2
"""Row groups read in turn: as many as Polars reads whole at a time. With more, column reads take twice as long."""


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A Parquet file at the time of pinning. ``groups``: the row groups to read.

    ``values``: the texts of partition columns, which the file does not have; None for null. ``mtime_ns``: the time of
    its last change, 0 for a file of a table.
    """

    path: str
    size: int
    mtime_ns: int
    groups: tuple[int, ...]
    values: Mapping[str, str | None]

    def check(self, status: Status) -> None:
        """Raise `SourceError` unless a file of this ``status`` is the pinned one."""
        if not self.mtime_ns:
            if status.st_size != self.size:
                raise SourceError(
                    f"{self.path} is damaged: it has {status.st_size} bytes, and had {self.size}. Restore it"
                )
        elif (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(
                f"{self.path} is no longer the file that was pinned when the job started: it was written to or "
                f"replaced. Do not change files while a job reads them"
            )

    def open_error(self, error: OSError) -> SourceError:
        """Return the error for a file that cannot be opened."""
        if isinstance(error, PermissionError):
            return SourceError(f"{self.path} may not be read here: give the user of the workers the right to")
        if self.mtime_ns:
            return SourceError(
                f"{self.path} was pinned when the job started, and is not there: it was removed, or this worker does "
                f"not see the folder ({error.strerror}). With workers on several machines files and staging= are in a "
                f"folder that all of them share"
            )
        if not isinstance(error, FileNotFoundError):
            return SourceError(f"{self.path} cannot be read ({error.strerror}): check its disk, or its store")
        return SourceError(
            f"{self.path} is a file of the pinned version of the table, and is not there: the version was vacuumed or "
            f"expired, or this worker does not see the folder ({error.strerror}). Keep versions for longer than jobs "
            f"take, and start this job from the beginning under another job name"
        )


@dataclass(frozen=True)
class RowGroups:
    """What a job reads. ``schema``, packed: the columns needed; ``names``: the columns of the rows, in order.

    ``staged``: the folder that was written for this job alone; None if the files belong to a table, or to the user of
    an earlier malstrom-py, whose snapshots contain such pins of Spark.
    """

    id: str
    schema: bytes
    names: tuple[str, ...]
    files: tuple[PinnedFile, ...]
    staged: str | None = None

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns needed."""
        return unpack_schema(self.schema)

    @property
    def rows_schema(self) -> pa.Schema:
        """The columns of the rows."""
        import pyarrow as pa

        needed = self.arrow_schema
        return pa.schema([needed.field(name) for name in self.names])

    @property
    def parts(self) -> list[Part]:
        """One partition for each row group, by file."""
        return [Section(file.path, "rowgroups", group, group + 1).part for file in self.files for group in file.groups]

    def find(self, part: Part) -> tuple[PinnedFile, int]:
        """Return the file and the row group of ``part``; `SourceError` if the pin does not contain it."""
        section = section_of(part)
        file = self._by_path.get(section.file)
        if file is None or section.unit != "rowgroups" or section.start not in file.groups:
            raise SourceError(
                f"{part!r} is not one of the partitions that were pinned when the job started ({self.id})"
            )
        return file, section.start

    def narrowed(self, keep: Any, columns: Collection[str]) -> RowGroups:
        """Return the pin with those ``columns`` only, at least one, and those that the filter ``keep`` uses."""
        names = tuple(name for name in self.names if name in columns) or self.names[:1]
        return replace(self, schema=pack_schema(needed_columns(keep, names, self.arrow_schema)), names=names)

    def record(self) -> dict[str, Any]:
        """Return the pin as plain JSON, for `row_groups_of` and for people who look into the job's folder."""
        files = [{**asdict(file), "groups": list(file.groups)} for file in self.files]
        return {
            "id": self.id,
            "names": list(self.names),
            "files": files,
            "staged": self.staged,
            "schema": packed_text(self.schema),
        }

    def check(self, base: TableFiles) -> None:
        """Raise `SourceError` unless all files exist and are those that were pinned."""
        for file in self.files:
            try:
                status = (base / file.path).stat()
            except OSError as error:
                raise file.open_error(error) from error
            file.check(status)

    @cached_property
    def _by_path(self) -> dict[str, PinnedFile]:
        return {file.path: file for file in self.files}


def row_groups_of(record: Mapping[str, Any]) -> RowGroups:
    """Return the pin of a `RowGroups.record`. KeyError, TypeError, ValueError or AttributeError: it is damaged."""
    files = tuple(PinnedFile(**{**file, "groups": tuple(file["groups"])}) for file in record["files"])
    return RowGroups(record["id"], packed_bytes(record["schema"]), tuple(record["names"]), files, record["staged"])


def new_pin(
    name: str, schema: pa.Schema, names: Sequence[str], files: Sequence[PinnedFile], staged: Path | None
) -> RowGroups:
    """Return a pin with ``files`` in order."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return RowGroups(name, pack_schema(schema), tuple(names), ordered, None if staged is None else str(staged))


class TableFiles:
    """Files by their names: local ones, and those of a store with ``options``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._objects = ObjectFolders([], options)

    def __truediv__(self, name: str) -> Path | ObjectPath:
        return self._objects / name if is_object_url(name) else Path(name)


class RowGroupSource(Pinned[dict[str, Any], RowGroups]):
    """A pinned source over row groups of Parquet files. ``keep``: the filter that workers evaluate, of Arrow."""

    is_narrowing = True
    parts_open_max = _OPEN_MAX

    def __init__(
        self, keep: Any = None, store_options: Mapping[str, str] | None = None, *, keeps_staging: bool = False
    ) -> None:
        super().__init__(keeps_staging=keeps_staging)
        self._keep = keep
        self._base = TableFiles(store_options or {})
        self._footers = Footers()

    def _pin_of(self, record: Mapping[str, Any]) -> RowGroups:
        return row_groups_of(record)

    def _check(self, pin: RowGroups) -> None:
        pin.check(self._base)

    def pin(self, job: str, record: Any = None) -> None:
        """Fix what ``job`` reads, and how many of its row groups a worker reads in turn."""
        super().pin(job, record)
        in_store = any(is_object_url(file.path) for file in self._pin.of(self).files)
        self.parts_open_max = OBJECTS_OPEN_MAX if in_store else _OPEN_MAX

    def list_parts(self) -> Sequence[Part]:
        return self._pin.of(self).parts

    def build_part(self, part: Part, state: Any) -> SourcePart[dict[str, Any]]:
        return self._part(self._pin.of(self), part, state)

    def build_narrow_part(self, part: Part, state: Any, columns: Collection[str]) -> SourcePart[dict[str, Any]]:
        """Build a partition that reads ``columns`` only."""
        return self._part(self._pin.of(self).narrowed(self._keep, columns), part, state)

    def _part(self, pin: RowGroups, part: Part, state: Any) -> LazyPart | AheadPart:
        file, group = pin.find(part)
        if state is not None and (state["file"], state["row_group"]) != (file.path, group):
            raise SourceError(
                f"{part} cannot resume at row group {state['row_group']} of {state['file']}: start the job from the "
                f"beginning"
            )
        filter = None if self._keep is None else Filter(self._keep, pin.names)
        if isinstance(self._base / file.path, ObjectPath):
            # The thread reads all rows: positions count those of the file.
            opened = partial(self._opened, pin, file, group, None)
            return AheadPart(file.path, LazyPart(_position(file, group, state), opened), filter)
        return LazyPart(_position(file, group, state), partial(self._opened, pin, file, group, filter))

    def _opened(
        self,
        pin: RowGroups,
        file: PinnedFile,
        group: int | None,
        filter: Filter | None,
        position: dict[str, Any],
        remembered: dict[str, Any] | None = None,
    ) -> ParquetPart:
        """Open a row group of ``file``, None for all, at ``position``; ``remembered`` goes into each position."""
        with source_errors(file.path):
            try:
                opened, known = self._footers.open(self._base / file.path, file.check)
            except OSError as error:
                raise file.open_error(error) from error
        return ParquetPart(
            file.path if group is None else f"{file.path} (row group {group})",
            opened,
            stop=None if group is None else group + 1,
            schema=pin.rows_schema if self._keep is None else pin.arrow_schema,
            first=None,
            position=position,
            remembered={"file": file.path} if remembered is None else remembered,
            known=known,
            folders=file.values,
            filter=filter,
            is_pinned=True,
        )


def _position(file: PinnedFile, group: int, state: Any) -> dict[str, Any]:
    """Return the position ``state``, None at the start. Those of versions up to 0.2 have the number of a ``row``."""
    row, finished = (0, False) if state is None else (state.get("row", 0), state["finished"])
    start = {"file": file.path, "row_group": group, "records": row, "rows": row, "finished": finished}
    return start | {name: value for name, value in (state or {}).items() if name != "row"}
