"""What a user says of files besides their names, checked as soon as it is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from malstrom_py.errors import PlanError
from malstrom_py.sources.files.csv_types import ColumnType, check_types
from malstrom_py.sources.files.listing import COMPRESSIONS, FORMATS, FileFormat
from malstrom_py.sources.files.zones import check_timezone


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `sources.Files`; ``format`` is None until the files tell it."""

    format: FileFormat | None
    null_values: Sequence[str] | None
    types: Mapping[str, ColumnType]
    split_bytes: int | None
    newlines_in_values: bool
    follow: bool
    new_files: bool
    timezone: str | None = None

    def with_format(self, file_format: FileFormat | None) -> Options:
        """The same for files of ``file_format``; `PlanError` if an option is for csv and they are not."""
        for name, is_given in (
            ("null_values", self.null_values is not None),
            ("types", bool(self.types)),
            ("newlines_in_values", not self.newlines_in_values),
        ):
            if is_given and file_format not in {None, "csv"}:
                raise PlanError(f"sources.Files: {name} is for csv files, these are {file_format}: leave it out")
        if self.timezone is not None and file_format not in {None, "csv", "parquet"}:
            raise PlanError(
                f"sources.Files: timezone is for csv and parquet files, these are {file_format}: leave it out, and "
                f"make times aware in a step"
            )
        return replace(self, format=file_format)

    def split_bytes_of(self, file: str) -> int | None:
        """The size of the sections of ``file``; None if it is only read as a whole.

        Where compressed data, or a value with line ends, can be entered is not known without all that is before it.
        """
        if PurePath(file).suffix.lower() in COMPRESSIONS or (self.format == "csv" and self.newlines_in_values):
            return None
        return self.split_bytes


def checked_options(
    *,
    format: object,
    null_values: object,
    types: object,
    split_bytes: object,
    newlines_in_values: object,
    follow: object,
    timezone: object,
    new_files: object,
) -> Options:
    """The options a user gave; `PlanError` for the first that is wrong by itself."""
    known: FileFormat | None = next((one for one in FORMATS if one == format), None)
    if format is not None and known is None:
        raise PlanError(f"sources.Files: format is one of {', '.join(FORMATS)}, got {format!r}")
    if split_bytes is not None and (
        not isinstance(split_bytes, int) or isinstance(split_bytes, bool) or split_bytes < 1
    ):
        raise PlanError(
            f"sources.Files: split_bytes is a whole number of bytes of at least 1, or None to split no file, "
            f"got {split_bytes!r}"
        )
    for name, flag in (("newlines_in_values", newlines_in_values), ("follow", follow), ("new_files", new_files)):
        if not isinstance(flag, bool):
            raise PlanError(f"sources.Files: {name} is True or False, got {flag!r}")
    if follow and new_files:
        raise PlanError("sources.Files: follow=True goes on with new files by itself: leave out new_files")
    nulls, kinds = _check_null_values(null_values), check_types(types)
    zone, follows = check_timezone(timezone), follow is True
    return Options(known, nulls, kinds, split_bytes, newlines_in_values is True, follows, new_files is True, zone)


def _check_null_values(null_values: object) -> list[str] | None:
    if null_values is None:
        return None
    values = list(null_values) if isinstance(null_values, Iterable) and not isinstance(null_values, str) else [None]
    if not all(isinstance(value, str) for value in values):
        raise PlanError('sources.Files: null_values is a list of str, for instance null_values=["NA"]')
    return [str(value) for value in values]
