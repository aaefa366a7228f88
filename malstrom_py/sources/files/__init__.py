"""``Files``: a source over files, one part per file.

`listing` finds the files, `streams` reads and decompresses, `frames` cuts into whole records, `lines` and `csv_rows`
decode them, `framed_part` and `parquet_part` are the parts. Memory is bounded by a frame or a Parquet batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.base import Part, SourcePart
from malstrom_py.sources.files.csv_records import cut_records
from malstrom_py.sources.files.csv_rows import CsvDecoder, infer_types, read_header
from malstrom_py.sources.files.csv_types import ColumnType, check_types, with_types
from malstrom_py.sources.files.framed_part import FramedPart
from malstrom_py.sources.files.lines import cut_lines, json_runs, text_runs
from malstrom_py.sources.files.listing import (
    FORMATS,
    FileFormat,
    Pattern,
    check_patterns,
    format_of_parts,
    format_of_patterns,
    list_files,
)
from malstrom_py.sources.files.parquet_part import ParquetPart, parquet_types
from malstrom_py.sources.files.schema import check_columns, merge_types, pack_schema, unpack_schema
from malstrom_py.sources.files.streams import READ_ERRORS, why_unreadable

if TYPE_CHECKING:
    import pyarrow as pa

V_co = TypeVar("V_co", covariant=True)

_INFERENCE_FILES: Final = 8
_INFERENCE_FRAMES: Final = 16


class Files(Generic[V_co]):
    r"""Reads the files that ``pattern`` matches, each as one part named by its path, sorted.

    ``pattern``: a path or pattern (``*``, ``?``, ``[…]``, ``**`` for folders below), str or Path, or several of
    them; relative ones are seen from the working directory of now. Wildcards leave out what begins with ``_`` or
    ``.``. ``format``: ``"csv"``, ``"json"``, ``"parquet"`` or ``"text"``; by default the files' suffix tells
    (.csv .json .jsonl .ndjson .parquet .txt .log). csv, json and text may be compressed (.gz, .zst). ``null_values``
    (csv): fields that mean None, for instance ``["NA"]``. ``types`` (csv): the types of some columns, for instance
    ``{"zip": "str"}``: bool, date, float64, int64, str, time, timestamp or timestamp_utc; the others are found. Two
    names of one file are one part, called as it is first found.

    Values: **csv** and **parquet** give dicts, column -> value. A csv file begins with a header; a quoted field may
    hold line ends; an empty field is None (an empty *quoted* one is ``""``, unless ``null_values`` is given).
    Empty lines are left out, but in a file of one column they are None. The types of csv columns are found once per
    run, by the first MiB of the first file: whole numbers, floats, booleans, dates or times if every value there is
    one, else str; whole numbers with leading zeros or beyond 64 bits are str; a column that is empty there goes by
    what follows. They are kept in every position. Parquet files bring their types, those of the first file are
    everyone's. Times have microseconds.
    **json** gives one dict per line, exactly as the line says; lines may differ in their fields. **text** gives each
    line as a str without its end.

    One record that cannot be read (fields too many or too few, a value that is not of its column's type, no JSON
    object, no UTF-8, longer than 16 MiB) raises `MalformedRecord`: the ``on_error`` policy of the step decides.
    SourceError: no file matches, a file cannot be read, is damaged or cut off, or has other columns than the first.
    PlanError: an argument is wrong, or the suffix does not tell the format.

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
        self: Files[str], pattern: Pattern | Sequence[Pattern], *, format: Literal["text"], null_values: None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Files[dict[str, Any]],
        pattern: Pattern | Sequence[Pattern],
        *,
        format: Literal["csv", "json", "parquet"],
        null_values: Iterable[str] | None = None,
        types: Mapping[str, ColumnType] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Files[Any],
        pattern: Pattern | Sequence[Pattern],
        *,
        format: FileFormat | None = None,
        null_values: Iterable[str] | None = None,
        types: Mapping[str, ColumnType] | None = None,
    ) -> None: ...
    def __init__(
        self,
        pattern: Pattern | Sequence[Pattern],
        *,
        format: FileFormat | None = None,
        null_values: Iterable[str] | None = None,
        types: Mapping[str, ColumnType] | None = None,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise PlanError(f"sources.Files: format is one of {', '.join(FORMATS)}, got {format!r}")
        self._patterns = check_patterns(pattern)
        self._format = format or format_of_patterns(self._patterns)
        self._null_values = _check_null_values(null_values)
        self._types = check_types(types)
        self._check_options()
        self._base = Path.cwd()
        self._schema: bytes | None = None
        self._first = ""

    def __repr__(self) -> str:
        return f"Files({', '.join(map(repr, self._patterns))})"

    def list_parts(self) -> Sequence[Part]:
        parts = list_files(self._patterns, self._base)
        if self._format is None:
            self._format = format_of_parts(parts)
            self._check_options()
        # Afresh for each run: the files may have been mended since the one before.
        self._schema, self._first = None, ""
        self._find_types(parts)
        return parts

    def build_part(self, part: Part, state: Any) -> SourcePart[V_co]:
        if self._format is None:
            self._format = format_of_parts([part])
        if state is not None and state["format"] != self._format:
            raise SourceError(
                f"{part} is to be read as {self._format}, its saved position is one in {state['format']}: "
                f"set format={state['format']!r}, or start the job without resuming."
            )
        if state is not None and state.get("schema") is not None:
            saved, self._first = state["schema"], state["first"]
            self._schema = pack_schema(with_types(part, unpack_schema(saved), self._types)) if self._types else saved
        if self._schema is None:
            self._find_types([part])
        try:
            opened: SourcePart[V_co] = self._open(part, state)
            return opened
        except SourceError as error:
            raise SourceError(str(error) if part in str(error) else f"{part} cannot be read: {error}.") from error
        except READ_ERRORS as error:
            raise SourceError(f"{part} cannot be read: {why_unreadable(error)}.") from error

    def _open(self, part: Part, state: Any) -> Any:
        path = self._base / part
        remembered = {"format": self._format, "schema": self._schema, "first": self._first}
        if self._format == "csv":
            return self._open_csv(part, path, state, remembered)
        if self._format == "parquet":
            schema = unpack_schema(self._schema or b"")
            return ParquetPart(part, path, schema=schema, first=self._first, state=state, remembered=remembered)
        decode = json_runs if self._format == "json" else text_runs
        return FramedPart(part, path, cut=cut_lines, decode=decode, state=state, remembered=remembered)

    def _open_csv(self, part: Part, path: Path, state: Any, remembered: dict[str, Any]) -> FramedPart:
        import pyarrow as pa

        names, begin = read_header(path) or ([], 0)
        schema = pa.schema([]) if self._schema is None else unpack_schema(self._schema)
        if names:
            check_columns(part, names, self._first, schema.names)
        decoder = CsvDecoder(names, schema, self._null_values, self._types)
        return FramedPart(
            part, path, cut=cut_records, decode=decoder.runs, state=state, remembered=remembered, begin=begin
        )

    def _find_types(self, parts: Sequence[Part]) -> None:
        """Find the types once: by the first of ``parts`` that has columns."""
        if self._schema is not None or self._format not in {"csv", "parquet"}:
            return
        schema = merge_types(chain.from_iterable(map(self._types_of, parts, range(_INFERENCE_FILES))))
        if schema is not None:
            self._schema = pack_schema(schema)

    def _types_of(self, part: Part, index: int) -> Iterator[pa.Schema]:
        path = self._base / part
        try:
            if self._format == "parquet":
                found = parquet_types(path)
            else:
                found = infer_types(path, self._null_values, frames_max=1 if index else _INFERENCE_FRAMES)
            for schema in found:
                if not self._first:
                    check_columns(part, schema.names, part, schema.names)
                    self._first = part
                yield with_types(part, schema, self._types)
        except SourceError as error:
            raise SourceError(str(error) if part in str(error) else f"{part} cannot be read: {error}.") from error
        except READ_ERRORS as error:
            raise SourceError(f"{part} cannot be read: {why_unreadable(error)}.") from error

    def _check_options(self) -> None:
        for name, option in (("null_values", self._null_values), ("types", self._types or None)):
            if option is not None and self._format not in {None, "csv"}:
                raise PlanError(f"sources.Files: {name} is for csv files, these are {self._format}: leave it out")


def _check_null_values(null_values: object) -> list[str] | None:
    if null_values is None:
        return None
    values = list(null_values) if isinstance(null_values, Iterable) and not isinstance(null_values, str) else [None]
    if not all(isinstance(value, str) for value in values):
        raise PlanError('sources.Files: null_values is a list of str, for instance null_values=["NA"]')
    return [str(value) for value in values]
