"""``Files``: a source over files, with one partition per file, section of a file, or watched folder.

`options` checks the arguments, `listing` finds files and names sections, `reading` infers types and opens sections,
`pin` has what a job has fixed, `follow` watches folders and finds new files. `frames` (with `csv`, `csv_scan`, `lines`)
and `parquet` read one file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.object_stores import checked_options
from malstrom_py.sources.base import BasePart, Part, SourcePart
from malstrom_py.sources.files.ahead import AheadPart
from malstrom_py.sources.files.csv import ColumnType, check_types
from malstrom_py.sources.files.folders import roots_of
from malstrom_py.sources.files.follow import FollowPart, KnownFiles, watched_folders
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
from malstrom_py.sources.files.pin import InputFiles, check_same, identities_of, identity_of, input_files_of
from malstrom_py.sources.files.reading import TYPES_FILES, FileReader, LazyPart, Types, source_errors
from malstrom_py.sources.files.typed_rows import check_rows
from malstrom_py.sources.files.zones import check_timezone
from malstrom_py.sources.pinned.source import Pinned

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


class Files(Pinned[V_co, InputFiles]):
    r"""Reads the files that ``pattern`` matches, in partitions, sorted by path; each record once, from exact positions.

    ``pattern``: a path or pattern (``*``, ``?``, ``[…]``, ``**``), a URL of an object store such as
    ``s3://bucket/in/*.csv``, or a list of them. Relative ones start at the present working directory. ``format``:
    ``"csv"``, ``"json"`` (an object per line), ``"parquet"`` or ``"text"``, by default that of the suffix.
    ``docs/files.md`` has all other arguments, types and rules.

    A file is one partition, named by its path; a larger one than ``split_bytes`` is several, where records can be found
    in the middle. Files and partitions are fixed when a job starts: one that resumes reads these, and a file that it
    has not read to its end and that changed, grew or went is a SourceError. With ``follow=True`` the source has no end
    and each folder before the wildcards is a partition, which continues with new files by name; with ``new_files=True``
    a finished job with snapshots, started again, reads the files that are new.

    Values are dicts, column -> value (text: each line as a str), or of the class ``rows``. Types of csv columns are
    inferred once per run, from the first MiB of the first file; Parquet files are read as the union of their columns.

    A record that cannot be read raises `MalformedRecord`: the step's ``on_error`` policy decides. SourceError: no file
    matches, or a file cannot be read, is damaged, or has other columns. PlanError: an argument is wrong.

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
                newlines_in_values,
                delimiter=delimiter,
                header=header,
                names=names,
                encoding=encoding,
                comment=comment,
                decimal=decimal,
                null_values=null_values,
            ),
        )
        super().__init__()
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

    def pin(self, job: str, record: Any = None) -> None:
        """Fix the files and their partitions, unless more of them may come (``follow=True``, ``new_files=True``)."""
        if self._is_fixed:
            super().pin(job, record)

    def pin_record(self) -> Any:
        """Return the pin as plain JSON; None if there is none."""
        return super().pin_record() if self._is_fixed else None

    def unpin(self, *, keep: bool = False) -> None:
        """Release the pin once no job reads it."""
        if self._is_fixed:
            super().unpin(keep=keep)

    @property
    def _is_fixed(self) -> bool:
        return not (self._watched or self.reads_new)

    def _described(self) -> str:
        return f"Files({', '.join(map(repr, self._patterns))})"

    def _find(self, job: str) -> InputFiles:
        files = self._begin()
        known, parts = self._reading.options.format, tuple(self._parts_of(files))
        assert known is not None
        identities = identities_of(files, self._objects or self._base)
        return InputFiles(known, identities, parts, self._types.schema, self._types.first)

    def _pin_of(self, record: Mapping[str, Any]) -> InputFiles:
        return input_files_of(record)

    def _check(self, pin: InputFiles) -> None:
        """Forget the types of an earlier run, if ``pin`` has some. Its files are checked when they are opened."""
        self._know_format(list(pin.files))
        self._start([] if pin.schema is not None else list(pin.files))

    def list_parts(self) -> Sequence[Part]:
        if self._pin.known is not None:
            return self._pin.known.parts
        if self._watched:
            self._start([file for watched in self._watched for file in watched.first_files(TYPES_FILES)])
            return [watched.part for watched in self._watched]
        return self._parts_of(self._begin())

    def _begin(self) -> list[str]:
        """Return the files that exist now; find their format and types."""
        files = self._list()
        self._know_format(files)
        self._start(files)
        return files

    def _parts_of(self, files: Iterable[str]) -> list[Part]:
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
            if self._resumed_types(part, state) is not None:
                break
        remembered = files.remembered(any_there=bool(found))
        return [*remembered, *self._parts_of(new)]

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
        self._check_split(part, section)
        known = None if state is None else self._resumed_types(part, state)
        remembered: dict[str, Any] = {"format": self._reading.options.format}
        pinned = None if self._pin.known is None else self._pin.known.files.get(section.file)

        def open_at(position: dict[str, Any]) -> BasePart[Any]:
            types = self._reading.completed(known or self._types_by([section.file]))
            remembered.update(schema=types.schema, first=types.first)
            file = section.file
            path = self._base / file if self._objects is None else self._objects.present(file)
            with source_errors(part):
                remembered["file"] = now = identity_of(path)
            if before := pinned or (position.get("file") or ())[::2]:
                check_same(part, before, now[::2])
            with source_errors(part):
                return self._reading.open(part, path, section, types, position, remembered, only=only)

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
        types = Types() if state is None else self._reading.completed(self._resumed_types(part, state) or Types())
        return FollowPart(watched, self._reading, types=types, find_types=self._types_by, state=state)

    def _fit_format(self) -> None:
        """Set what depends on the format, when it is known.

        Few partitions of Parquet are open at a time, which holds decoded pages of all columns, and few of objects, each
        of which has a thread. Columns that a plan does not read are left out of dicts.
        """
        options, is_parquet = self._reading.options, self._reading.options.format == "parquet"
        self.parts_open_max = _PARQUET_OPEN_MAX if is_parquet else _OPEN_MAX
        if self._objects is not None:
            self.parts_open_max = OBJECTS_OPEN_MAX
        self.is_narrowing = options.format in {"csv", "parquet"} and options.rows is dict and not options.follow

    def _know_format(self, files: Sequence[str]) -> None:
        if self._reading.options.format is None:
            options = self._reading.options.with_format(format_of_parts([Part(file) for file in files]))
            self._reading = replace(self._reading, options=options)
            self._fit_format()

    def _check_format(self, part: Part, state: Any) -> None:
        known, pin = self._reading.options.format, self._pin.known
        before = state["format"] if state is not None else known if pin is None else pin.format
        if before != known:
            raise SourceError(
                f"{part} would be read as {known}, but its saved position is one in {before}: "
                f"set format={before!r}, or start the job without resuming."
            )

    def _check_split(self, part: Part, section: Section) -> None:
        """`SourceError` for a partition of a file that is read from its start now: records would be cut."""
        if section.unit == "bytes" and self._reading.options.split_bytes_of(section.file) is None:
            raise SourceError(
                f"{part} is a part of {section.file}, which is not split now: give the former split_bytes, encoding "
                f"and newlines_in_values, or start the job without resuming."
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
        if self._types.schema is None and (pin := self._pin.known) is not None and pin.schema is not None:
            self._types = self._reading.pinned(pin.first, pin.schema, pin.first)
        if self._types.schema is None:
            types = self._reading.find_types(self._types_files or files)
            self._types_files = []
            if self._reading.options.follow and not types.by_rows:
                return types
            self._types = types
        return self._types

    def _resumed_types(self, part: Part, state: Any) -> Types | None:
        """Make the types in a position those of all partitions and return them; None if the position has none."""
        if state["schema"] is None:
            return None
        self._types = self._reading.pinned(part, state["schema"], state["first"])
        return self._types
