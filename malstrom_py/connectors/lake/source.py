"""What the sources of both table formats do; a subclass finds the files of a version, and the log of later ones.

The files of a table never change, so a pin is the list of the files of one version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, ClassVar, Final

from malstrom_py.connectors.lake.follow import FromPinned, TableLog
from malstrom_py.data.schema import stored_type, widens_to
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import instead_of
from malstrom_py.sources.base import Part
from malstrom_py.sources.files.ahead import AheadPart
from malstrom_py.sources.files.footers import Footer, constant, needed_columns, parquet_types, read_footer
from malstrom_py.sources.files.options import adapted
from malstrom_py.sources.files.reading import LazyPart, source_errors
from malstrom_py.sources.pinned.later import GrowingRowGroups, VersionLog, start_at
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, new_pin
from malstrom_py.validation import checked_flag

if TYPE_CHECKING:
    import pyarrow as pa

_THREADS: Final = 16
_FIELD_ID: Final = b"PARQUET:field_id"

_LATER: Final = "#versions"
"""The end of the name of the partition that reads later versions."""


@dataclass(frozen=True)
class TableFile:
    """A data file. ``values``: texts of partition columns, None for null."""

    path: str
    values: Mapping[str, str | None]


@dataclass(frozen=True)
class TableVersion:
    """One version of a table. ``where`` names it in errors. ``ids``: name of a column -> id of its field, if known.

    ``table_id``: that of the table, not of another one that is made in its place; "" where versions have such ids.
    """

    where: str
    version: int
    schema: pa.Schema
    files: Sequence[TableFile]
    ids: Mapping[str, int] = field(default_factory=dict)
    table_id: str = ""


class LakeSource(GrowingRowGroups):
    """A pinned source over the row groups of the files of one ``version`` of the table ``name``, None for the newest.

    ``follow``: one more partition has the rows of later versions.
    """

    kind: ClassVar[str]
    """The name of the format and of its source."""

    version_name: ClassVar[str] = "version"
    """The name of the argument that chooses the version."""

    is_in_order = False
    """Whether later versions change rows, so that these must come first: all rows are one partition then."""

    def __init__(
        self,
        name: str,
        version: int | None,
        columns: Iterable[str] | None,
        filter: Any,
        store_options: Mapping[str, str],
        follow: bool,
    ) -> None:
        asked_by = f"sources.{self.kind}"
        super().__init__(_checked_filter(filter, asked_by), store_options)
        self._name = name
        self._where = f"the {self.kind} table {name}"
        self._version = _checked_version(version, f"{asked_by}: {self.version_name}")
        self._columns = _checked_names(columns, asked_by)
        self._follow = checked_flag(follow, f"{asked_by}: follow")

    @abstractmethod
    def _find_version(self) -> TableVersion:
        """Return the version to read: the one that was asked for, else the newest."""

    @abstractmethod
    def _log(self, names: Sequence[str], table_id: str) -> TableLog:
        """Return the log of later versions, of which the columns ``names`` are read, of the table ``table_id``."""

    def __repr__(self) -> str:
        asked = [repr(self._name)]
        if self._version is not None:
            asked.append(f"{self.version_name}={self._version}")
        if self._columns is not None:
            asked.append(f"columns={list(self._columns)!r}")
        if self._keep is not None:
            asked.append(f"filter={self._keep}")
        if self._follow:
            asked.append("follow=True")
        return f"{self.kind}({', '.join(asked)})"

    def list_parts(self) -> Sequence[Part]:
        if self.is_in_order:
            return [self._later_part]
        parts = super().list_parts()
        return [*parts, self._later_part] if self._follow else parts

    def _check(self, pin: RowGroups) -> None:
        # A job that follows outlives the files that it has read; one that it has not is checked when it is opened.
        if not self._follow:
            super()._check(pin)

    @property
    def _later_part(self) -> Part:
        return Part(f"{self._name}{_LATER}")

    def _part(self, pin: RowGroups, part: Part, state: Any) -> LazyPart | AheadPart:
        if part != self._later_part:
            return super()._part(pin, part, state)
        version, _, table_id = pin.id.partition(" ")
        log: VersionLog = (table := self._log(pin.arrow_schema.names, table_id))
        place = table.place_after(int(version))
        if self.is_in_order:
            log, place = FromPinned(log, [file for file in pin.files if file.groups], place), FromPinned.FIRST
        return self._later(pin, part, start_at(self._name, place) if state is None else state, log)

    def _check_later(self, file: PinnedFile, schema: pa.Schema) -> None:
        """Raise `SourceError` unless the columns of a file that was added later have the pinned types."""
        with source_errors(file.path):
            try:
                (columns,) = parquet_types(self._base / file.path, self._footers)
            except OSError as error:
                raise file.open_error(error) from error
        _check_types(self._where, file.path, columns, schema)

    def _find(self, job: str) -> RowGroups:
        import pyarrow as pa

        found = self._find_version()
        schema = pa.schema([pa.field(one.name, stored_type(one.type)) for one in adapted(found.schema)])
        names = list(schema.names if self._columns is None else self._columns)
        missing = [name for name in names if name not in schema.names]
        if missing:
            raise SourceError(f"{found.where} has no column {missing[0]!r}{instead_of(missing[0], schema.names)}")
        needed = needed_columns(self._keep, names, schema)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="malstrom-footers") as threads:
            files = list(threads.map(lambda one: self._inspect(found, one, needed), found.files))
        return new_pin(f"{found.version} {found.table_id}".strip(), needed, names, files, None)

    def _inspect(self, found: TableVersion, file: TableFile, schema: pa.Schema) -> PinnedFile:
        import pyarrow as pa

        partition = _partition(found, file.values, schema)
        try:
            footer = read_footer(self._base / file.path, schema, keep=self._keep, partition=partition)
        except FileNotFoundError:
            raise SourceError(
                f"{found.where} lacks the file {file.path}: the version was vacuumed or expired. Read a later version"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{file.path}, a file of {found.where}, cannot be read ({type(error).__name__})"
            ) from None
        _check_ids(found, file, footer, schema)
        _check_types(found.where, file.path, footer.columns, schema)
        values = {name: text for name, text in file.values.items() if name not in footer.columns.names}
        return PinnedFile(file.path, footer.size, 0, footer.groups, values)


def partition_text(value: str | int | date | None) -> str | None:
    """Return the ``value`` of a partition column as a text; None for null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _partition(found: TableVersion, values: Mapping[str, str | None], schema: pa.Schema) -> Any:
    """Return the expression of partition values that is true for all rows of a file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    expression: Any = pc.scalar(True)
    for name, text in values.items():
        if name in schema.names:
            column: Any = pc.field(name)
            try:
                value = constant(text, schema.field(name).type)
            except pa.ArrowException:
                raise SourceError(
                    f"{found.where}: values of partition column {name!r} ({schema.field(name).type}) cannot be read: "
                    f"leave the column out with columns="
                ) from None
            expression = expression & (column.is_null() if text is None else column == value)
    return expression


def _check_ids(found: TableVersion, file: TableFile, footer: Footer, schema: pa.Schema) -> None:
    """Raise `SourceError` unless the columns of ``file`` are those of ``schema`` by name and by id."""
    by_id = {int(one.metadata[_FIELD_ID]): one.name for one in footer.stored if (one.metadata or {}).get(_FIELD_ID)}
    ids = {name: number for number, name in by_id.items()}
    for name in schema.names:
        number = found.ids.get(name)
        if number is not None and (by_id.get(number, name) != name or ids.get(name, number) != number):
            raise SourceError(
                f"column {name!r} of {found.where} was renamed after {file.path} was written: rewrite the files of "
                f"the table, or leave the column out with columns="
            )


def _check_types(where: str, path: str, columns: pa.Schema, schema: pa.Schema) -> None:
    """Raise `SourceError` unless the ``columns`` of a file fit the types of ``schema``."""
    for one in schema:
        if one.name in columns.names and not widens_to(columns.field(one.name).type, one.type):
            raise SourceError(
                f"column {one.name!r} of {where} is {one.type}, and {columns.field(one.name).type} in {path}: leave "
                f"the column out with columns="
            )


def _checked_names(columns: Iterable[str] | None, asked_by: str) -> tuple[str, ...] | None:
    """Return the names of the columns to read, None for all; `PlanError` if the argument is wrong."""
    if columns is None:
        return None
    names = [] if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PlanError(f"{asked_by}: columns must be a list of different names of columns")
    return tuple(names)


def _checked_filter(filter: object, asked_by: str) -> Any:
    """Return ``filter``; `PlanError` if it is not an expression of Arrow."""
    import pyarrow.compute as pc

    if filter is not None and not isinstance(filter, pc.Expression):
        raise PlanError(
            f"{asked_by}: filter must be an expression of pyarrow.compute, such as pc.field('delay') > 10, "
            f"got {type(filter).__name__}"
        )
    return filter


def _checked_version(version: object, what: str) -> int | None:
    """Return the version of a table to read, None for the newest; `PlanError` if the argument is wrong."""
    if version is not None and (type(version) is not int or version < 0):
        raise PlanError(f"{what} must be a whole number, or None for the newest, got {version!r}")
    return version
