"""``Files``: a source over files, with one partition per file, section of a file, or watched folder.

`options` checks the arguments, `listing` finds files and names sections, `reading` infers types and opens sections,
`follow` watches folders and finds new files. `frames` (with `csv`, `csv_scan`, `lines`) and `parquet` read one file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.object_stores import checked_options
from malstrom_py.sources.base import BasePart, BaseSource, Part, SourcePart
from malstrom_py.sources.files.ahead import AheadPart
from malstrom_py.sources.files.csv import ColumnType, check_types
from malstrom_py.sources.files.folders import roots_of
from malstrom_py.sources.files.follow import FollowPart, KnownFiles, check_same, identity_of, watched_folders
from malstrom_py.sources.files.listing import (
    FileFormat,
    Pattern,
    Section,
    check_patterns,
    format_of_parts,
    format_of_patterns,
    list_files,
    section_of,
)
from malstrom_py.sources.files.objects import ObjectFolders, all_or_none_objects
from malstrom_py.sources.files.options import Options, check_dialect
from malstrom_py.sources.files.reading import TYPES_FILES, FileReader, LazyPart, Types, source_errors
from malstrom_py.sources.files.typed_rows import check_rows
from malstrom_py.sources.files.zones import check_timezone

V_co = TypeVar("V_co", covariant=True)
R = TypeVar("R")

_OPEN_MAX: Final = 256
_PARQUET_OPEN_MAX: Final = 16
OBJECTS_OPEN_MAX: Final = 16
_SPLIT_BYTES: Final = 128 << 20


class FileOptions(TypedDict, total=False):
    """The options of `Files` for files of any format; see there, also for what they are by default."""

    encoding: str | None
    split_bytes: int | None
    follow: bool
    new_files: bool
    store_options: Mapping[str, str] | None


class TableOptions(FileOptions, total=False):
    """The options of `Files` for files with columns."""

    null_values: Iterable[str] | None
    types: Mapping[str, ColumnType] | None
    timezone: str | None
    newlines_in_values: bool
    delimiter: str | None
    header: bool
    names: Sequence[str] | None
    comment: str | None
    decimal: str
    columns: Sequence[str] | None


class Files(BaseSource[V_co]):
    r"""Reads the files that ``pattern`` matches, in parts, sorted by path; each record once, from exact positions.

    ``pattern``: a path or pattern (``*``, ``?``, ``[…]``, ``**`` for subfolders), str or Path, or several of them;
    relative ones start at the current working directory. Wildcards skip names that begin with ``_`` or ``.``. Or URLs
    of an object store, such as ``s3://bucket/in/*.csv``, with ``store_options`` as `Snapshots` takes ``options``; an
    object that changes while it is read is a SourceError (``docs/connectors/object-stores.md``).
    ``format``: ``"csv"``, ``"json"``, ``"parquet"`` or ``"text"``; by default the format of the files' suffix
    (.csv .json .jsonl .ndjson .parquet .txt .log). csv, json and text may be compressed (.gz, .zst). ``null_values``
    (csv): fields that mean None, for instance ``["NA"]``. ``types`` (csv): the types of some columns, for instance
    ``{"zip": "str"}``: bool, date, decimal, float64, int64, str, time, timestamp, timestamp_utc; others are inferred.
    ``delimiter`` (csv): what separates fields, by default a comma. ``header=False`` (csv): the first record is a row,
    and ``names`` has the names of the columns; with a header, ``names`` replaces those in it. ``encoding`` (csv, json,
    text): that of the text, such as ``"latin-1"``, by default UTF-8. ``comment`` (csv): what lines begin with that are
    no records, such as ``"#"``. ``decimal`` (csv): what is before the digits of a fraction, ``"."`` or ``","``.
    ``timezone`` (csv, parquet): the zone of times without one, such as ``"UTC"``; they are converted to UTC, and one
    that the zone has twice or not at all makes its record malformed. A file with two names is read once, under the
    name found first.

    A file is one partition, named by its path. One larger than ``split_bytes`` (None: never) is several: Parquet by row
    groups (``path#rowgroups=0-3``), json and text by bytes (``path#bytes=0-134217728``; a record is in the partition in
    which it begins), csv likewise with ``newlines_in_values=False``, which states that no value holds a line end. Then
    every line is a record, and one whose quotes do not make whole fields is malformed. Compressed files are never
    split. Do not change the files, ``split_bytes`` or ``newlines_in_values`` while a run may be resumed.

    With ``follow=True`` the source has no end: each folder before the wildcards is one partition, which continues with
    new files in that folder, sorted by name within one listing. A file is read once, whole, and known by its name:
    write it under a hidden name, then rename it. Folder and files may be missing at first. Removed files are forgotten.

    With ``new_files=True`` a finished job with snapshots, started again, reads the files that are new, in the types
    that were inferred first. Files already read are known by their paths; one that was changed since is a SourceError.
    A renamed file is not read again. Removed files are forgotten, and no file at all is not an error.

    ``columns`` (csv, parquet): the columns to read, in this order; values of others are not read, nor checked, and
    files may differ in them. ``rows`` (csv, parquet): what the values are. ``dict`` is the default; ``tuple`` gives
    tuples in the order of the columns; a class with fields (a ``msgspec.Struct``, a dataclass or a named tuple) is made
    of the columns that its fields name, at a third of the cost of dicts for a Struct. Its fields have the types of the
    columns (in csv files, the columns have those of the fields); None in a field that takes no None makes a record
    malformed. See ``docs/files.md``.

    Values: **csv** and **parquet** give dicts, column -> value. A csv file begins with a header; a quoted field may
    hold line ends; an empty field is None (an empty *quoted* one is ``""``, unless ``null_values`` is given).
    Empty lines are skipped, but in a file of one column they are None. The types of csv columns are inferred once per
    run, from the first MiB of the first file: int, float, bool, date or time if every value there is one, else str;
    ints with leading zeros or beyond 64 bits are str; a column that is empty there is inferred from later data. Every
    position stores them. Parquet files are read as the union of their columns, in types that hold the values of all.
    Names of folders such as ``day=2024-01-01``, matched by wildcards, are columns too. Times have microseconds.
    **json** gives one dict per line with exactly its values; lines may differ in their fields. **text** gives each
    line as a str without its end.

    A record that cannot be read (too many or too few fields, a value that is not of its column's type, not a JSON
    object, not UTF-8, longer than 16 MiB) raises `MalformedRecord`: the step's ``on_error`` policy decides.
    SourceError: no file matches, or a file cannot be read, is damaged or cut off, changed since a position in it was
    saved, has other columns than the first, or lacks a column that ``columns`` or ``rows`` name or has it in another
    type. PlanError: an argument is wrong, or the suffix (with ``follow=True`` of the pattern) does not determine the
    format.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "flights.csv").write_text("carrier,delay\nUA,2\nB6,NA\n")
    >>> source = Files(folder / "*.csv", null_values=["NA"])
    >>> [Path(part).name for part in source.list_parts()]
    ['flights.csv']
    >>> part = source.build_part(source.list_parts()[0], None)
    >>> part.poll(1).to_pylist()
    [{'carrier': 'UA', 'delay': 2}]
    >>> restored = source.build_part(source.list_parts()[0], part.snapshot())
    >>> restored.poll(100).to_pylist()
    [{'carrier': 'B6', 'delay': None}]
    >>> part.close(), restored.close()
    (None, None)
    """

    @overload
    def __init__(
        self: Files[str],
        pattern: Pattern | Sequence[Pattern],
        *,
        format: Literal["text"],
        null_values: None = None,
        **options: Unpack[FileOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Files[dict[str, Any]],
        pattern: Pattern | Sequence[Pattern],
        *,
        format: Literal["csv", "json", "parquet"],
        **options: Unpack[TableOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Files[R],
        pattern: Pattern | Sequence[Pattern],
        *,
        rows: type[R],
        format: Literal["csv", "parquet"] | None = None,
        **options: Unpack[TableOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Files[Any],
        pattern: Pattern | Sequence[Pattern],
        *,
        format: FileFormat | None = None,
        **options: Unpack[TableOptions],
    ) -> None: ...
    def __init__(
        self,
        pattern: Pattern | Sequence[Pattern],
        *,
        format: FileFormat | None = None,
        null_values: Iterable[str] | None = None,
        types: Mapping[str, ColumnType] | None = None,
        timezone: str | None = None,
        split_bytes: int | None = _SPLIT_BYTES,
        newlines_in_values: bool = True,
        delimiter: str | None = None,
        header: bool = True,
        names: Sequence[str] | None = None,
        encoding: str | None = None,
        comment: str | None = None,
        decimal: str = ".",
        follow: bool = False,
        new_files: bool = False,
        columns: Sequence[str] | None = None,
        rows: type[Any] = dict,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        options = Options(
            format=format,
            types=check_types(types),
            columns=check_rows(rows, columns),
            rows=rows,
            split_bytes=split_bytes,
            follow=follow,
            timezone=check_timezone(timezone),
            new_files=new_files,
            dialect=check_dialect(
                delimiter=delimiter,
                header=header,
                names=names,
                encoding=encoding,
                comment=comment,
                decimal=decimal,
                null_values=null_values,
                newlines_in_values=newlines_in_values,
            ),
        )
        self._patterns = check_patterns(pattern)
        self._objects: ObjectFolders | None = None
        if all_or_none_objects(self._patterns):
            if follow:
                raise PlanError(
                    "sources.Files: follow=True watches local folders: start the job again with new_files=True"
                )
            self._objects = ObjectFolders(self._patterns, checked_options(store_options, "sources.Files"))
        elif store_options is not None:
            raise PlanError("sources.Files: store_options are for object stores, and the patterns are local paths")
        known = options.format or format_of_patterns(self._patterns)
        if follow and known is None:
            raise PlanError("sources.Files: the format of future files is not known with follow=True: pass format=")
        roots = roots_of(self._patterns, None if self._objects is not None else Path.cwd())
        self._reading = FileReader(options.with_format(known), self._objects or Path.cwd(), roots=roots)
        self._watched = watched_folders(self._patterns, Path.cwd()) if follow else []
        self.rows = options.rows
        self.reads_new = options.new_files
        self.reads_new_with = None if self._watched else "new_files=True"
        self._fit_format()
        self._types = Types()
        # The files to infer types from, if that failed when the partitions were listed.
        self._types_files: list[str] = []

    def __repr__(self) -> str:
        options = self._reading.options
        asked = [] if options.rows is dict else [f"rows={options.rows.__qualname__}"]
        if options.columns is not None and options.rows in {dict, tuple}:
            asked.append(f"columns={list(options.columns)}")
        return f"Files({', '.join([*map(repr, self._patterns), *asked])})"

    def list_parts(self) -> Sequence[Part]:
        if self._watched:
            self._start([file for watched in self._watched for file in watched.first_files(TYPES_FILES)])
            return [watched.part for watched in self._watched]
        files = self._list()
        self._know_format(files)
        self._start(files)
        return [section.part for file in files for section in self._reading.split(file)]

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        """Return the partitions in a snapshot whose files still exist, and the partitions of new files.

        `SourceError`: a file was changed after it had been read.
        """
        files = KnownFiles(known, self._objects or self._base)
        found = self._list(known=files.names)
        new = files.new(found)
        self._know_format(new or files.names or found)
        for part, state in known.items():
            self._check_format(part, state)
        self._start(new)
        for part, state in known.items():
            if self._pin(part, state) is not None:
                break
        remembered = files.remembered(any_there=bool(found))
        return [*remembered, *(section.part for file in new for section in self._reading.split(file))]

    @property
    def _base(self) -> Path:
        assert isinstance(self._reading.base, Path)
        return self._reading.base

    def _list(self, *, known: Sequence[str] | None = None) -> list[str]:
        if self._objects is not None:
            return self._objects.list_files(known=known)
        return [str(file) for file in list_files(self._patterns, self._base, known=known)]

    def has_read(self, position: Any) -> bool:
        """Return whether a partition at ``position`` is at its end."""
        return position is not None and position["finished"] is True

    def build_narrow_part(self, part: Part, state: Any, columns: Collection[str]) -> SourcePart[V_co]:
        """Build a partition that reads ``columns`` only."""
        section = section_of(part)
        self._check_format(part, state)
        built: SourcePart[V_co] = self._read(part, section, state, columns)
        return built

    def build_part(self, part: Part, state: Any) -> SourcePart[V_co]:
        section = section_of(part)
        self._know_format([section.file])
        self._check_format(part, state)
        built: SourcePart[V_co] = (
            self._follow(part, state) if self._reading.options.follow else self._read(part, section, state)
        )
        return built

    def _read(
        self, part: Part, section: Section, state: Any, only: Collection[str] | None = None
    ) -> LazyPart | AheadPart:
        pinned = None
        if state is not None:
            self._check_split(part, section, state)
            pinned = self._pin(part, state)
        remembered: dict[str, Any] = {
            "format": self._reading.options.format,
            "split_bytes": self._reading.options.split_bytes_of(section.file),
        }

        def open_at(position: dict[str, Any]) -> BasePart[Any]:
            types = pinned or self._types_by([section.file])
            remembered.update(schema=types.schema, first=types.first)
            reading = self._reading
            if self._objects is not None:
                reading = replace(reading, base=self._objects.only(section.file))
            with source_errors(part):
                remembered["file"] = now = identity_of(reading.base / section.file)
            if self._objects is not None and (before := position.get("file")) is not None:
                check_same(part, before, now)
            with source_errors(part):
                return reading.open(part, section, types, position, remembered, only=only)

        if state is None:
            state = {**remembered, "schema": self._types.schema, "first": self._types.first}
            state |= self._reading.start_of(section)
        lazy = LazyPart(state, open_at)
        return lazy if self._objects is None else AheadPart(part, lazy)

    def _follow(self, part: Part, state: Any) -> FollowPart:
        watched = next((watched for watched in self._watched if watched.part == part), None)
        if watched is None:
            raise SourceError(
                f"{part!r} is not one of the watched folders {', '.join(repr(one.part) for one in self._watched)}: "
                f"keep the patterns, or start the job without resuming."
            )
        types = Types() if state is None else self._pin(part, state) or Types()
        return FollowPart(watched, self._reading, types=types, find_types=self._types_by, state=state)

    def _fit_format(self) -> None:
        """Set what depends on the format, when it is known.

        Few partitions of Parquet are open at a time, which holds decoded pages of all columns, and few of objects, each
        of which has a thread. Columns that a plan does not read are left out of dicts from Parquet; csv is checked as a
        whole.
        """
        options, is_parquet = self._reading.options, self._reading.options.format == "parquet"
        self.parts_open_max = _PARQUET_OPEN_MAX if is_parquet else _OPEN_MAX
        if self._objects is not None:
            self.parts_open_max = OBJECTS_OPEN_MAX
        self.is_narrowing = is_parquet and options.rows is dict and not options.follow

    def _know_format(self, files: Sequence[str]) -> None:
        if self._reading.options.format is None:
            options = self._reading.options.with_format(format_of_parts([Part(file) for file in files]))
            self._reading = replace(self._reading, options=options)
            self._fit_format()

    def _check_format(self, part: Part, state: Any) -> None:
        known = self._reading.options.format
        if state is not None and state["format"] != known:
            raise SourceError(
                f"{part} would be read as {known}, but its saved position is one in {state['format']}: "
                f"set format={state['format']!r}, or start the job without resuming."
            )

    def _check_split(self, part: Part, section: Section, state: Any) -> None:
        """`SourceError` if a file is split differently than at the saved position: rows would repeat or be lost."""
        before, now = state["split_bytes"], self._reading.options.split_bytes_of(section.file)
        if before != now and section not in self._reading.split(section.file):
            raise SourceError(
                f"{part} is not a partition of {section.file} as split now (by {now or 'no'} bytes): its saved "
                f"position was made with split_bytes={before}. Give the former split_bytes and "
                f"newlines_in_values, or start the job without resuming."
            )

    def _start(self, files: Sequence[str]) -> None:
        """Infer the types again for each run: the files may have been corrected since the last one.

        An error in the first files is raised when a partition needs the types; a resumed one has its own.
        """
        self._types, self._types_files = Types(), []
        try:
            self._types_by(files)
        except SourceError:
            self._types_files = list(files[:TYPES_FILES])

    def _types_by(self, files: Sequence[str]) -> Types:
        """Return the types that all partitions share; infer them from ``files`` if they are not known yet."""
        if self._types.schema is None:
            types = self._reading.find_types(self._types_files or files)
            self._types_files = []
            if self._reading.options.follow and not types.by_rows:
                return types
            self._types = types
        return self._types

    def _pin(self, part: Part, state: Any) -> Types | None:
        """Make the types in a position those of all partitions and return them; None if the position has none."""
        if state["schema"] is None:
            return None
        self._types = self._reading.pinned(part, state)
        return self._types
