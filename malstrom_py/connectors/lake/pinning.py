"""What a source of a table reads: the files of one version, their row groups, and the rows that a filter keeps.

The files of a table never change, so a pin is the list of the files of one version. They are read as those of
`sources.Spark` are. A filter leaves out row groups whose statistics exclude it, then rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import stored_type, widens_to
from malstrom_py.errors import SourceError
from malstrom_py.errors.text import instead_of
from malstrom_py.object_stores import ObjectStat, is_object_url
from malstrom_py.sources.files.objects import ObjectFolders, ObjectPath
from malstrom_py.sources.files.options import adapted
from malstrom_py.sources.spark.footers import kept_groups
from malstrom_py.sources.spark.pin import Pin, PinnedFile, constant, new_pin

if TYPE_CHECKING:
    import pyarrow as pa

_THREADS: Final = 16
_FIELD_ID: Final = b"PARQUET:field_id"


class TableFilePin(PinnedFile):
    """A file of a table, which is never written again: only its size is compared."""

    __slots__ = ()

    def check(self, status: os.stat_result | ObjectStat) -> None:
        """Raise `SourceError` unless a file of this ``status`` is the pinned one."""
        if status.st_size != self.size:
            raise SourceError(f"{self.path} is damaged: it has {status.st_size} bytes, and had {self.size}. Restore it")

    def open_error(self, error: OSError) -> SourceError:
        """Return the error for a file that cannot be opened."""
        if isinstance(error, PermissionError):
            return SourceError(f"{self.path} may not be read here: give the user of the workers the right to")
        if not isinstance(error, FileNotFoundError):
            return SourceError(f"{self.path} cannot be read ({error.strerror}): check its disk, or its store")
        return SourceError(
            f"{self.path} is a file of the pinned version of the table, and is not there: the version was vacuumed or "
            f"expired, or this worker does not see the folder ({error.strerror}). Keep versions for longer than jobs "
            f"take, and start this job from the beginning under another job name"
        )


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


class TableFiles:
    """The files of a table by their names: local ones, and those of a store with ``options``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._objects = ObjectFolders([], options)

    def __truediv__(self, name: str) -> Path | ObjectPath:
        return self._objects / name if is_object_url(name) else Path(name)


def pin_version(found: TableVersion, columns: Sequence[str] | None, keep: Any, base: TableFiles) -> Pin:
    """Return the pin of the files of ``found``; `SourceError` if they cannot be read."""
    import pyarrow as pa

    schema = pa.schema([pa.field(one.name, stored_type(one.type)) for one in adapted(found.schema)])
    names = list(schema.names if columns is None else columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise SourceError(f"{found.where} has no column {missing[0]!r}{instead_of(missing[0], schema.names)}")
    needed = needed_schema(keep, names, schema)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="malstrom-footers") as threads:
        files = list(threads.map(lambda one: _inspect(found, one, needed, keep, base / one.path), found.files))
    return new_pin(str(found.version), needed, names, files, None)


def needed_schema(keep: Any, names: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """Return the columns ``names`` of ``schema`` in its order, and those that ``keep`` uses."""
    import pyarrow as pa

    used: set[str] = set()
    if keep is not None:
        wrong = _why_not(keep, list(schema))
        if wrong is not None:
            raise SourceError(f"the filter {keep} cannot be evaluated: {wrong}")
        used = {
            name for name in schema.names if _why_not(keep, [one for one in schema if one.name != name]) is not None
        }
    return pa.schema([one for one in schema if one.name in {*names, *used}])


def narrow_pin(pin: Pin, keep: Any, columns: Sequence[str]) -> Pin:
    """Return ``pin`` with those ``columns`` only, at least one."""
    from malstrom_py.sources.files.options import pack_schema

    names = tuple(name for name in pin.names if name in columns) or pin.names[:1]
    return Pin(pin.id, pack_schema(needed_schema(keep, names, pin.arrow_schema)), names, pin.files, pin.staged)


def _why_not(keep: Any, fields: Sequence[pa.Field]) -> str | None:
    import pyarrow as pa

    try:
        pa.schema(fields).empty_table().filter(keep)
    except pa.ArrowException as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None


def _inspect(
    found: TableVersion, file: TableFile, schema: pa.Schema, keep: Any, path: Path | ObjectPath
) -> TableFilePin:
    import pyarrow as pa
    import pyarrow.dataset as ds

    reading = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            # A fragment with partition values shows only the other columns.
            make = ds.ParquetFileFormat(read_options=reading).make_fragment
            physical = make(stream).physical_schema
            fragment = make(stream, partition_expression=_known(found, file.values, schema))
            metadata, columns = fragment.metadata, adapted(physical)
            groups = kept_groups(fragment, metadata, columns, schema, keep)
    except FileNotFoundError:
        raise SourceError(
            f"{found.where} lacks the file {file.path}: the version was vacuumed or expired. Read a later version"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{file.path}, a file of {found.where}, cannot be read ({type(error).__name__})") from None
    _check(found, file, metadata.schema.to_arrow_schema(), columns, schema)
    values = {name: text for name, text in file.values.items() if name not in physical.names}
    return TableFilePin(file.path, size, 0, groups, values)


def _known(found: TableVersion, values: Mapping[str, str | None], schema: pa.Schema) -> Any:
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


def _check(found: TableVersion, file: TableFile, stored: pa.Schema, columns: pa.Schema, schema: pa.Schema) -> None:
    """Raise `SourceError` unless the columns of ``file`` are those of ``schema``, by name, by id and by type."""
    by_id = {int(one.metadata[_FIELD_ID]): one.name for one in stored if (one.metadata or {}).get(_FIELD_ID)}
    ids = {name: number for number, name in by_id.items()}
    for one in schema:
        number = found.ids.get(one.name)
        if number is not None and (by_id.get(number, one.name) != one.name or ids.get(one.name, number) != number):
            raise SourceError(
                f"column {one.name!r} of {found.where} was renamed after {file.path} was written: rewrite the files of "
                f"the table, or leave the column out with columns="
            )
        if one.name in columns.names and not widens_to(columns.field(one.name).type, one.type):
            raise SourceError(
                f"column {one.name!r} of {found.where} is {one.type}, and {columns.field(one.name).type} in "
                f"{file.path}: leave the column out with columns="
            )
