"""Reads the files of one source: infers column types, splits files into sections, and opens sections.

A partition opens its file at its first poll, so that many partitions can be built at no cost.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import SourceError
from malstrom_py.sources.base import BasePart
from malstrom_py.sources.files.csv import (
    ColumnType,
    CsvDecoder,
    with_types,
)
from malstrom_py.sources.files.csv_inference import infer_types, read_header, shares_of_numbers
from malstrom_py.sources.files.csv_records import cutter
from malstrom_py.sources.files.folders import completed, folder_types, folder_values
from malstrom_py.sources.files.footers import Footers, parquet_types, row_group_runs
from malstrom_py.sources.files.frames import (
    CSV_LINE_END,
    LINE_END,
    BadRecord,
    Bytes,
    Cut,
    FramedPart,
    Framer,
    Run,
    Sifted,
    record_bounds,
)
from malstrom_py.sources.files.lines import cut_lines, json_runs, text_runs
from malstrom_py.sources.files.listing import Section
from malstrom_py.sources.files.objects import ObjectFolders, ObjectPath
from malstrom_py.sources.files.options import (
    Options,
    check_columns,
    merge_types,
    pack_schema,
    union_types,
    unpack_schema,
    untyped,
)
from malstrom_py.sources.files.parquet import ParquetPart
from malstrom_py.sources.files.streams import READ_ERRORS, ByteStream, why_unreadable
from malstrom_py.sources.files.typed_rows import RowMaker, csv_types, select_columns

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger("malstrom_py.sources")


class OpeningPart(BasePart[Any]):
    """A partition that opens other partitions, one at a time."""

    _opened: BasePart[Any] | None = None
    _polls: dict[str, bool] | None = None

    def set_polls(self, *, frames: bool, bad_rows: bool) -> None:
        self._polls = {"frames": frames, "bad_rows": bad_rows}
        if self._opened is not None:
            self._opened.set_polls(**self._polls)

    def _as_chosen(self, opened: BasePart[Any]) -> BasePart[Any]:
        if self._polls is not None:
            opened.set_polls(**self._polls)
        return opened

    def lag_rows(self) -> int | None:
        return None if self._opened is None else self._opened.lag_rows()

    def lag_bytes(self) -> int | None:
        return None if self._opened is None else self._opened.lag_bytes()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class LazyPart(OpeningPart):
    """A partition that opens its file with ``open_at`` at the first poll; never if ``position`` is at the end."""

    def __init__(self, position: dict[str, Any], open_at: Callable[[dict[str, Any]], BasePart[Any]]) -> None:
        self._position = position
        self._open_at = open_at

    def poll(self, rows_max: int) -> Any:
        self.ensure_open()
        return None if self._opened is None else self._opened.poll(rows_max)

    def ensure_open(self) -> None:
        """Open the file, unless it is open or was read to its end."""
        if self._opened is None and not self._position["finished"]:
            self._opened = self._as_chosen(self._open_at(self._position))

    def is_finished(self) -> bool:
        return self._position["finished"] is True if self._opened is None else self._opened.is_finished()

    def snapshot(self) -> dict[str, Any]:
        return dict(self._position) if self._opened is None else self._opened.snapshot()


TYPES_FILES: Final = 8
"""The number of files that types are inferred from, at most."""

PARQUET_TYPES_FILES: Final = 1000
PARQUET_TYPES_OBJECTS: Final = 64
"""The number of Parquet files whose footers are read for the types, at most, and that of objects."""

_INFERENCE_FRAMES: Final = 16


@dataclass(frozen=True, slots=True)
class Types:
    """The types of all columns, packed, and the file they were inferred from; no ``schema``: none are known.

    ``by_rows``: whether they were inferred from rows, not only from column names.
    """

    schema: bytes | None = None
    first: str = ""
    by_rows: bool = False


@contextmanager
def source_errors(name: str) -> Iterator[None]:
    """Raise errors of opening ``name`` as a `SourceError` that names it."""
    try:
        yield
    except SourceError as error:
        raise SourceError(str(error) if name in str(error) else f"{name} cannot be read: {error}.") from error
    except READ_ERRORS as error:
        raise SourceError(f"{name} cannot be read: {why_unreadable(error)}.") from error


def is_missing(error: SourceError) -> bool:
    """Return whether `source_errors` raised ``error`` because the file does not exist (any more)."""
    return isinstance(error.__cause__, FileNotFoundError)


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files with ``options``, whose ``format`` is known; names are relative to ``base``."""

    options: Options
    base: Path | ObjectFolders
    footers: Footers = field(default_factory=Footers)
    roots: tuple[str, ...] = ()
    """The folders before the wildcards, below which names of folders are columns."""
    looked_at: set[str] = field(default_factory=set)
    """The file that was looked at for columns of text that are likely meant to be numbers."""
    completed_types: dict[Types, Types] = field(default_factory=dict)

    def find_types(self, files: Sequence[str]) -> Types:
        """Infer column types: of csv from the first of ``files`` with columns, and later ones for its empty columns.

        Of Parquet from all of them, or from as many as there is time for. Folders give columns too. Types of
        csv columns that are not read stay null.
        """
        if self.options.format not in {"csv", "parquet"}:
            return Types()
        inferred_from: list[str] = []
        is_parquet = self.options.format == "parquet"
        looked_at = _spread(files, self._parquet_files_max) if is_parquet else files[:TYPES_FILES]
        schemas = self._schemas(looked_at, inferred_from)
        schema = union_types(schemas) if is_parquet else merge_types(schemas, self.options.columns)
        if schema is None:
            return Types()
        schema = self._with_folders(schema, files)
        self._chosen(inferred_from[0], schema)
        schema = with_types(inferred_from[0], schema, self._given)
        # `infer_types` yields the names of a csv file's columns first, then types once per frame.
        by_rows = self.options.format == "parquet" or len(inferred_from) > len(set(inferred_from))
        return Types(pack_schema(schema), inferred_from[0], by_rows)

    @property
    def _parquet_files_max(self) -> int:
        return PARQUET_TYPES_FILES if isinstance(self.base, Path) else PARQUET_TYPES_OBJECTS

    def _with_folders(self, schema: pa.Schema, files: Sequence[str]) -> pa.Schema:
        """Return ``schema`` with the columns in the names of folders that no file has."""
        import pyarrow as pa

        more = [pa.field(*each) for each in folder_types(files, self.roots).items() if each[0] not in schema.names]
        return pa.schema([*schema, *more])

    def pinned(self, part: str, schema: bytes, first: str) -> Types:
        """Return the types in a position or a pin, with those that the user has named since."""
        if self._given:
            schema = pack_schema(with_types(part, unpack_schema(schema), self._given))
        return Types(schema, first, by_rows=True)

    def completed(self, types: Types) -> Types:
        """Return the ``types`` of a position or a pin with those of csv columns that the job did not read before.

        They are inferred from the same file as the others, so that all partitions agree; `SourceError`: it is gone.
        """
        import pyarrow as pa

        if self.options.format != "csv" or types.schema is None:
            return types
        schema = unpack_schema(types.schema)
        kinds = dict(zip(schema.names, schema.types, strict=True))
        new = untyped(kinds, self.options.columns)
        if new and types not in self.completed_types:
            found = self._types_in(types.first, new[0])
            kinds |= {name: found.field(name).type for name in new}
            self.completed_types[types] = replace(types, schema=pack_schema(pa.schema(kinds.items())))
        return self.completed_types[types] if new else types

    def _types_in(self, file: str, column: str) -> pa.Schema:
        """Return the types in ``file``, for that of ``column``."""
        try:
            types = self.find_types([file])
        except SourceError as error:
            if not is_missing(error):
                raise
            types = Types()
        if types.schema is None:
            raise SourceError(
                f"the job did not read column {column!r} before, and {file}, in which the types of all columns are "
                f"found, is gone or empty: give the type, such as types={{{column!r}: 'str'}}."
            )
        return unpack_schema(types.schema)

    def split(self, file: str) -> list[Section]:
        """Return the sections of ``file``; one if the file is small, or cannot be read right now."""
        size, whole = self.options.split_bytes_of(file), [Section(file)]
        path = self.base / file
        try:
            file_size = path.stat().st_size
            if size is None or file_size <= size:
                return whole
            if self.options.format != "parquet":
                # Up to the end of a full section, so that the name does not change while a file grows.
                return [Section(file, "bytes", start, start + size) for start in range(0, file_size, size)]
            opened, _ = self.footers.open(path)
        except (SourceError, OSError):
            return whole
        try:
            runs = row_group_runs(opened.metadata, size)
        finally:
            opened.close(force=True)
        return [Section(file, "rowgroups", *run) for run in runs] if len(runs) > 1 else whole

    def start_of(self, section: Section) -> dict[str, Any]:
        """Return the position at the start of ``section``."""
        place = "row_group" if self.options.format == "parquet" else "offset"
        return {place: section.start, "records": 0, "rows": 0, "finished": False}

    def open(
        self,
        name: str,
        path: Path | ObjectPath,
        section: Section,
        types: Types,
        position: dict[str, Any],
        remembered: dict[str, Any],
        *,
        only: Collection[str] | None = None,
    ) -> FramedPart | ParquetPart:
        """Open ``section`` of ``path``, called ``name`` in errors, at ``position``; ``remembered`` goes into positions.

        ``only``: the columns that anything reads; None for all. All of csv are parsed, to find what is malformed.
        """
        if self.options.format == "parquet":
            schema = _unpacked(types)
            chosen = _narrowed(self._chosen(name, schema), only)
            rows = RowMaker(self.options.rows, chosen, name)
            file, known = self.footers.open(path)
            return ParquetPart(
                name,
                file,
                stop=section.stop if section.unit == "rowgroups" else None,
                schema=chosen,
                rows=rows,
                first=types.first,
                of_first=schema.names if self.options.columns is None else None,
                position=position,
                remembered=remembered,
                known=known,
                timezone=self.options.timezone,
                folders=folder_values(section.file, self.roots),
            )
        if self.options.format == "csv":
            return self._open_csv(name, path, section, types, position, remembered, only)
        decode = json_runs if self.options.format == "json" else text_runs
        framer = self._framer(path, section, position, cut_lines, LINE_END, 0)
        return FramedPart(name, framer, decode=decode, position=position, remembered=remembered)

    def _open_csv(
        self,
        name: str,
        path: Path | ObjectPath,
        section: Section,
        types: Types,
        position: dict[str, Any],
        remembered: dict[str, Any],
        only: Collection[str] | None,
    ) -> FramedPart:
        dialect = self.options.dialect
        names, begin = read_header(path, dialect) or ([], 0)
        schema = _unpacked(types)
        chosen, options = self._chosen(name, schema), self.options
        folders = {one: text for one, text in folder_values(section.file, self.roots).items() if one not in names}
        if names:
            is_part = options.columns is not None
            expected = [one for one in (chosen if is_part else schema).names if one not in folders]
            check_columns(name, names, types.first, expected, others=is_part)
        in_file = _without(chosen, folders)
        if not len(in_file):
            in_file = _without(schema, folders)
            in_file = merge_types(iter([in_file])) or in_file  # those that are not read are text
        decoder = CsvDecoder(names, in_file, self._given, timezone=options.timezone, dialect=dialect)
        rows = RowMaker(options.rows, chosen, name)
        read = _narrowed(chosen, only).names

        def decode(data: Bytes) -> list[Run]:
            runs = decoder.runs(data)
            if folders or len(read) < len(chosen):
                runs = [with_columns(run) for run in runs]
            return rows.runs(runs)

        def with_columns(run: Any) -> Run:
            if isinstance(run, BadRecord):
                return run
            if isinstance(run, Sifted):
                return replace(run, rows=with_columns(run.rows))
            return (completed(run, chosen, folders, name) if folders else run).select(read)

        framer = self._framer(path, section, position, cutter(dialect), CSV_LINE_END, begin)
        return FramedPart(
            name,
            framer,
            decode=decode,
            position=position,
            remembered=remembered,
            before_sifting=partial(self._warn_of_text, section.file, in_file),
        )

    def _warn_of_text(self, file: str, schema: pa.Schema) -> None:
        """Log one warning if a bad value among the first ones has made text of a column of numbers."""
        if self.looked_at:
            return
        self.looked_at.add(file)
        texts = [one.name for one in schema if kind_of(one.type) is ColumnKind.STR and one.name not in self._given]
        with source_errors(file):
            shares = shares_of_numbers(self.base / file, texts, self.options.dialect)
        for name, share in shares.items():
            _LOG.warning(
                "%s: column %r is text, though %.1f %% of its first values read as numbers. Text is never malformed, "
                "so on_error= does not find the others: give sources.Files types={%r: 'float64'}, or 'str' for text",
                file,
                name,
                100 * share,
                name,
            )

    @property
    def _given(self) -> dict[str, ColumnType]:
        """The types that the user has given to csv columns, also by a class of rows."""
        return csv_types(self.options.rows, self.options.types) if self.options.format == "csv" else {}

    def _chosen(self, path: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the user wants of those of ``path``. No ``schema``: an empty file."""
        names = self.options.columns
        return schema if names is None or not len(schema) else select_columns(schema, names, path, self.options.rows)

    def _framer(
        self,
        path: Path | ObjectPath,
        section: Section,
        position: dict[str, Any],
        cut: Cut,
        line_end: re.Pattern[bytes],
        begin: int,
    ) -> Framer:
        """Return the framer of ``section`` at ``position``; ``begin`` is the offset of the file's first record."""
        stop = None
        if section.unit == "bytes":
            begin, stop = record_bounds(path, section.start, section.stop, begin=begin, line_end=line_end)
        stream = ByteStream(path, stop=stop, encoding=self.options.dialect.encoding)
        try:
            stream.skip_to(max(begin, position["offset"]))
        except BaseException:
            stream.close()
            raise
        return Framer(stream, cut)

    def _schemas(self, files: Sequence[str], inferred_from: list[str]) -> Iterator[pa.Schema]:
        """Yield schemas of the files; append the file of each to ``inferred_from``."""
        for index, file in enumerate(files):
            try:
                with source_errors(file):
                    for schema in self._schemas_of(file, 1 if index else _INFERENCE_FRAMES):
                        if not inferred_from:
                            check_columns(file, schema.names, file, schema.names)
                        inferred_from.append(file)
                        given: dict[str, Any] = {
                            name: kind for name, kind in self._given.items() if name in schema.names
                        }
                        yield with_types(file, schema, given)
            except SourceError as error:
                if not (self.options.follow and is_missing(error)):
                    raise

    def _schemas_of(self, file: str, frames_max: int) -> Iterator[pa.Schema]:
        path = self.base / file
        if self.options.format == "parquet":
            return parquet_types(path, self.footers)
        columns, given = self.options.columns, self._given
        return infer_types(
            path,
            self.options.dialect,
            frames_max=frames_max,
            but=lambda name: name in given or (columns is not None and name not in columns),
        )


def _spread(files: Sequence[str], count: int) -> Sequence[str]:
    """Return ``count`` of ``files``, the first and the last among them; all if there are no more."""
    if len(files) <= count:
        return files
    return [files[index * (len(files) - 1) // (count - 1)] for index in range(count)]


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field for field in schema if field.name not in names])


def _unpacked(types: Types) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([]) if types.schema is None else unpack_schema(types.schema)


def _narrowed(schema: pa.Schema, only: Collection[str] | None) -> pa.Schema:
    """Return the columns of ``schema`` that are in ``only``; all if it lacks one, so that an error can list them."""
    import pyarrow as pa

    if only is None or not set(only) <= set(schema.names):
        return schema
    return pa.schema([field for field in schema if field.name in only])
