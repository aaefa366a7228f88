"""The pin: which row groups of which files a job reads, as plain data that every worker gets.

What the names of folders say of the files in them, as Hive and Spark write it: ``year=2013/carrier=UA/…``.

The pin: which row groups of which files a job reads, as plain data that every worker gets and a record can hold.

Rule: a file is read as long as it is, by size and time of its last change, the one that was pinned.
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
from malstrom_py.sinks.files.partitions import parse_folder
from malstrom_py.sources.base import Part
from malstrom_py.sources.files.listing import Section, section_of
from malstrom_py.sources.files.options import pack_schema, unpack_schema

if TYPE_CHECKING:
    import pyarrow as pa


def partition_values(path: str, names: Collection[str]) -> dict[str, str | None]:
    """The values of the columns called ``names`` as the folders of ``path`` tell them, None for null.

    >>> partition_values("/t/year=2013/carrier=U%2FA/__x=1/part-0.parquet", {"year", "carrier"})
    {'year': '2013', 'carrier': 'U/A'}
    """
    told = map(parse_folder, PurePath(path).parts[:-1])
    return {column: text for column, text in filter(None, told) if column in names}


def constant(value: str | None, kind: pa.DataType) -> pa.Scalar:
    """``value`` as one of the type ``kind``. pyarrow.ArrowException: it is none."""
    import pyarrow as pa

    if value is None or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    return pa.scalar(value, pa.string()).cast(kind)


def is_told_by_text(kind: pa.DataType) -> bool:
    """Whether a value of that type is the same to Spark and to Arrow, by what a folder says of it."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_signed_integer(kind) or types.is_date32(kind))


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A Parquet file as it was when it was pinned. ``groups``: those to be read of its row groups.

    ``values``: what the names of its folders say of columns that are not in it, None for null.
    """

    path: str
    size: int
    mtime_ns: int
    groups: tuple[int, ...]
    values: Mapping[str, str | None]

    def check(self, status: os.stat_result) -> None:
        """`SourceError` unless a file of this ``status`` is the one that was pinned."""
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(
                f"{self.path} is not the file any more that was pinned when the job started: it was written to or "
                f"replaced. Leave files as they are while a job reads them, or give staging= to read a copy"
            )

    def open_error(self, error: OSError) -> SourceError:
        """What to say if it cannot be opened at all."""
        if isinstance(error, PermissionError):
            return SourceError(f"{self.path} may not be read here: give the user of the workers the right to")
        return SourceError(
            f"{self.path} was pinned when the job started, and is not there: it was removed, or this worker does not "
            f"see the folder ({error.strerror}). With workers on several machines files and staging= are in a folder "
            f"that all of them share"
        )


@dataclass(frozen=True)
class Pin:
    """What a job reads. ``schema``, packed: the columns that are needed; ``names``: those that the rows have, in order.

    ``staged``: the folder that was written for this job alone, None where the files are the user's own.
    """

    id: str
    schema: bytes
    names: tuple[str, ...]
    files: tuple[PinnedFile, ...]
    staged: str | None = None

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns that are needed."""
        return unpack_schema(self.schema)

    @property
    def parts(self) -> list[Part]:
        """One part for each row group, by file."""
        return [Section(file.path, "rowgroups", group, group + 1).part for file in self.files for group in file.groups]

    def find(self, part: Part) -> tuple[PinnedFile, int]:
        """The file and the row group of ``part``; `SourceError` if it is none of this pin."""
        section = section_of(part)
        file = self._by_path.get(section.file)
        if file is None or section.unit != "rowgroups" or section.start not in file.groups:
            raise SourceError(f"{part!r} is none of the parts that were pinned when the job started ({self.id})")
        return file, section.start

    def record(self) -> dict[str, Any]:
        """All of it as plain JSON: for whoever looks into the folder of the job, and for `pin_of`."""
        files = [{**asdict(file), "groups": list(file.groups)} for file in self.files]
        return {
            "id": self.id,
            "names": list(self.names),
            "files": files,
            "staged": self.staged,
            "schema": base64.b64encode(self.schema).decode(),
        }

    def check(self) -> None:
        """`SourceError` unless all files are there, and are those that were pinned."""
        for file in self.files:
            try:
                status = Path(file.path).stat()
            except OSError as error:
                raise file.open_error(error) from error
            file.check(status)

    @cached_property
    def _by_path(self) -> dict[str, PinnedFile]:
        return {file.path: file for file in self.files}


def pin_of(record: Mapping[str, Any]) -> Pin:
    """The pin that `Pin.record` told of; `SourceError` if it is damaged."""
    try:
        files = tuple(PinnedFile(**{**file, "groups": tuple(file["groups"])}) for file in record["files"])
        schema = base64.b64decode(record["schema"], validate=True)
        return Pin(record["id"], schema, tuple(record["names"]), files, record["staged"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"the record of what was pinned is damaged ({type(error).__name__})") from error


def new_pin(
    name: str, schema: pa.Schema, names: Sequence[str], files: Sequence[PinnedFile], staged: Path | None
) -> Pin:
    """A pin, its files in order."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Pin(name, pack_schema(schema), tuple(names), ordered, None if staged is None else str(staged))
