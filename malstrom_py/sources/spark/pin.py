"""The pin: which row groups of which files a job reads, as plain data that workers get and a record can hold.

Rule: a file is read only while its size and time of last change are those that were pinned.

The names of a file's folders give the values of partition columns, as Hive and Spark write them:
``year=2013/carrier=UA/…``.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SourceError
from malstrom_py.object_stores import ObjectStat
from malstrom_py.sinks.files.partitions import parse_folder
from malstrom_py.sources.base import Part
from malstrom_py.sources.files.listing import Section, section_of
from malstrom_py.sources.files.options import pack_schema, unpack_schema

if TYPE_CHECKING:
    import pyarrow as pa


def partition_values(path: str, names: Collection[str]) -> dict[str, str | None]:
    """Return the values of the columns ``names`` in the folder names of ``path``, None for null.

    >>> partition_values("/t/year=2013/carrier=U%2FA/__x=1/part-0.parquet", {"year", "carrier"})
    {'year': '2013', 'carrier': 'U/A'}
    """
    values = map(parse_folder, PurePath(path).parts[:-1])
    return {column: text for column, text in filter(None, values) if column in names}


def constant(value: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return ``value`` as a scalar of type ``kind``. pyarrow.ArrowException: the cast fails."""
    import pyarrow as pa

    if value is None or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    return pa.scalar(value, pa.string()).cast(kind)


def is_exact_as_text(kind: pa.DataType) -> bool:
    """Return whether Spark and Arrow read the same value of ``kind`` from a folder name."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_signed_integer(kind) or types.is_date32(kind))


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A Parquet file at the time of pinning. ``groups``: the row groups to read.

    ``values``: the values of partition columns from the names of its folders, None for null.
    """

    path: str
    size: int
    mtime_ns: int
    groups: tuple[int, ...]
    values: Mapping[str, str | None]

    def check(self, status: os.stat_result | ObjectStat) -> None:
        """Raise `SourceError` unless a file of this ``status`` is the pinned one."""
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(
                f"{self.path} is no longer the file that was pinned when the job started: it was written to or "
                f"replaced. Do not change files while a job reads them, or give staging= to read a copy"
            )

    def open_error(self, error: OSError) -> SourceError:
        """Return the error for a file that cannot be opened."""
        if isinstance(error, PermissionError):
            return SourceError(f"{self.path} may not be read here: give the user of the workers the right to")
        return SourceError(
            f"{self.path} was pinned when the job started, and is not there: it was removed, or this worker does not "
            f"see the folder ({error.strerror}). With workers on several machines files and staging= are in a folder "
            f"that all of them share"
        )


@dataclass(frozen=True)
class Pin:
    """What a job reads. ``schema``, packed: the columns needed; ``names``: the columns of the rows, in order.

    ``staged``: the folder that was written for this job alone; None if the files are the user's own.
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

    def record(self) -> dict[str, Any]:
        """Return the pin as plain JSON, for `pin_of` and for people who look into the job's folder."""
        files = [{**asdict(file), "groups": list(file.groups)} for file in self.files]
        return {
            "id": self.id,
            "names": list(self.names),
            "files": files,
            "staged": self.staged,
            "schema": base64.b64encode(self.schema).decode(),
        }

    def check(self, base: Any = Path()) -> None:
        """Raise `SourceError` unless all files exist, at ``base / path``, and are those that were pinned."""
        for file in self.files:
            try:
                status = (base / file.path).stat()
            except OSError as error:
                raise file.open_error(error) from error
            file.check(status)

    @cached_property
    def _by_path(self) -> dict[str, PinnedFile]:
        return {file.path: file for file in self.files}


def pin_of(record: Mapping[str, Any]) -> Pin:
    """Return the pin of a `Pin.record`; `SourceError` if the record is damaged."""
    try:
        files = tuple(PinnedFile(**{**file, "groups": tuple(file["groups"])}) for file in record["files"])
        schema = base64.b64decode(record["schema"], validate=True)
        return Pin(record["id"], schema, tuple(record["names"]), files, record["staged"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"the record of what was pinned is damaged ({type(error).__name__})") from error


def new_pin(
    name: str, schema: pa.Schema, names: Sequence[str], files: Sequence[PinnedFile], staged: Path | None
) -> Pin:
    """Return a pin with ``files`` in order."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Pin(name, pack_schema(schema), tuple(names), ordered, None if staged is None else str(staged))
