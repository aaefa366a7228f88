"""What the sources of both table formats do; a subclass finds the files of a version.

The files of a table never change, so a pin is the list of the files of one version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import stored_type, widens_to
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import instead_of
from malstrom_py.sources.files.footers import Footer, constant, needed_columns, read_footer
from malstrom_py.sources.files.options import adapted
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, RowGroupSource, new_pin

if TYPE_CHECKING:
    import pyarrow as pa

_THREADS: Final = 16
_FIELD_ID: Final = b"PARQUET:field_id"


@dataclass(frozen=True)
class TableFile:
    """A data file. ``values``: texts of partition columns, None for null."""

    path: str
    values: Mapping[str, str | None]


@dataclass(frozen=True)
class TableVersion:
    """One version of a table. ``where`` names it in errors. ``ids``: name of a column -> id of its field, if known."""

    where: str
    version: int
    schema: pa.Schema
    files: Sequence[TableFile]
    ids: Mapping[str, int] = field(default_factory=dict)


class LakeSource(RowGroupSource):
    """A pinned source over the row groups of the files of one version of a table."""

    def __init__(
        self, asked_by: str, columns: Iterable[str] | None, filter: Any, store_options: Mapping[str, str]
    ) -> None:
        super().__init__(_checked_filter(filter, asked_by), store_options)
        self._columns = _checked_names(columns, asked_by)

    @abstractmethod
    def _find_version(self) -> TableVersion:
        """Return the version to read: the one that was asked for, else the newest."""

    def _chosen(self) -> str:
        """Return the columns and the filter, as the user has given them."""
        asked = [] if self._columns is None else [f", columns={list(self._columns)!r}"]
        if self._keep is not None:
            asked.append(f", filter={self._keep}")
        return "".join(asked)

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
        return new_pin(str(found.version), needed, names, files, None)

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
        _check(found, file, footer, schema)
        values = {name: text for name, text in file.values.items() if name not in footer.columns.names}
        return PinnedFile(file.path, footer.size, 0, footer.groups, values)


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


def _check(found: TableVersion, file: TableFile, footer: Footer, schema: pa.Schema) -> None:
    """Raise `SourceError` unless the columns of ``file`` are those of ``schema``, by name, by id and by type."""
    by_id = {int(one.metadata[_FIELD_ID]): one.name for one in footer.stored if (one.metadata or {}).get(_FIELD_ID)}
    ids = {name: number for number, name in by_id.items()}
    for one in schema:
        number = found.ids.get(one.name)
        if number is not None and (by_id.get(number, one.name) != one.name or ids.get(one.name, number) != number):
            raise SourceError(
                f"column {one.name!r} of {found.where} was renamed after {file.path} was written: rewrite the files of "
                f"the table, or leave the column out with columns="
            )
        if one.name in footer.columns.names and not widens_to(footer.columns.field(one.name).type, one.type):
            raise SourceError(
                f"column {one.name!r} of {found.where} is {one.type}, and {footer.columns.field(one.name).type} in "
                f"{file.path}: leave the column out with columns="
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


def checked_version(version: object, what: str) -> int | None:
    """Return the version of a table to read, None for the newest; `PlanError` if the argument is wrong."""
    if version is not None and (type(version) is not int or version < 0):
        raise PlanError(f"{what} must be a whole number, or None for the newest, got {version!r}")
    return version
