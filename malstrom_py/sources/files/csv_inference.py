"""CSV: the header, and the types of columns, inferred from the first frames.

Rule: an inferred type never loses information. Identifiers beyond 64 bits would become equal floats and ``00501``
would become 501, so both stay text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import in_microseconds
from malstrom_py.errors import SourceError
from malstrom_py.sources.files.csv import null_options, read_block
from malstrom_py.sources.files.csv_records import (
    COMMA,
    QUOTES_FLAW,
    Dialect,
    cutter,
    split_lines,
    split_records,
    without_comments,
)
from malstrom_py.sources.files.csv_values import share_of_numbers
from malstrom_py.sources.files.frames import Bytes, Framer
from malstrom_py.sources.files.streams import READ_ERRORS, ByteStream, FilePath

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.csv as pa_csv


def read_header(path: FilePath, dialect: Dialect = COMMA) -> tuple[list[str], int] | None:
    """Return the column names of a file and the offset of its first record; None for an empty file."""
    stream = ByteStream(path, encoding=dialect.encoding)
    try:
        framer = Framer(stream, cutter(dialect))
        while (frame := framer.next_frame(0)) is not None:
            if frame.flaw is not None:
                raise SourceError(f"it does not begin with a CSV header: {frame.flaw}")
            offset = frame.offset
            if not dialect.header:
                return list(dialect.names or ()), offset
            for lines, is_whole in split_lines(frame.data, dialect) if dialect.one_line else [(frame.data, True)]:
                if not is_whole:
                    raise SourceError(f"it does not begin with a CSV header: {QUOTES_FLAW}")
                mark = (dialect.comment or "").encode()
                for start, end in split_records(lines, dialect=dialect):
                    if not mark or not lines.startswith(mark, start):
                        return _header_names(lines[start:end], dialect), offset + end
                offset += len(lines)
    finally:
        stream.close()
    return None


def _header_names(record: Bytes, dialect: Dialect) -> list[str]:
    try:
        text = record.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SourceError("its CSV header is not valid UTF-8 text. Convert the file") from None
    try:
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=dialect.separator))
    except csv.Error:
        limit = csv.field_size_limit()
        raise SourceError(
            f"a column name in its CSV header is longer than {limit} characters. Correct the header"
        ) from None
    if dialect.names is not None:
        if len(names) != len(dialect.names):
            raise SourceError(f"its header has {len(names)} names, and names= has {len(dialect.names)}: name all")
        return list(dialect.names)
    other = next((one for one in ";\t|" if one in names[0]), None) if len(names) == 1 else None
    if other is not None and dialect.delimiter is None:
        raise SourceError(
            f"its only column is called {names[0]!r}: if {other!r} separates its fields, give delimiter={other!r}, "
            f'else delimiter=","'
        )
    return names


def infer_types(
    path: FilePath, dialect: Dialect = COMMA, *, frames_max: int, but: Callable[[str], bool] = lambda name: False
) -> Iterator[pa.Schema]:
    """Yield the column types by the header (all null), then by each frame in turn those of columns not ``but``."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    header = read_header(path, dialect)
    if header is None:
        return
    names, offset = header
    yield pa.schema([(name, pa.null()) for name in names])
    inferred = [name for name in names if not but(name)]
    if not inferred:
        return
    only = None if len(inferred) == len(names) else inferred
    convert = pa_csv.ConvertOptions(include_columns=only, **null_options(dialect))
    for data in _first_frames(path, offset, frames_max, dialect):
        table = read_block(data, names, convert, dialect, on_malformed=_skip)
        yield _kept_as_written(_usable_types(table), data, names, dialect)


def shares_of_numbers(path: FilePath, columns: Sequence[str], dialect: Dialect = COMMA) -> dict[str, float]:
    """Return the share of numbers in the first frame of the ``columns`` in which most values read so, but not all."""
    header = read_header(path, dialect) if columns else None
    if header is None:
        return {}
    names, offset = header
    as_text = _text_options(columns, dialect)
    shares: dict[str, float] = {}
    for data in _first_frames(path, offset, 1, dialect):
        texts = read_block(data, names, as_text, dialect, on_malformed=_skip)
        shares = {name: share_of_numbers(texts[name], dialect.decimal) for name in columns}
    return {name: share for name, share in shares.items() if MOSTLY <= share < 1}


MOSTLY: Final = 0.9
"""A column of text with such a share of numbers is likely meant to be one of numbers."""


def _first_frames(path: FilePath, offset: int, frames_max: int, dialect: Dialect) -> Iterator[Bytes]:
    """Yield the readable records of each of the first frames from ``offset`` on, none of a damaged one."""
    stream = ByteStream(path, encoding=dialect.encoding)
    try:
        stream.skip_to(offset)
        framer = Framer(stream, cutter(dialect))
        for _ in range(frames_max):
            frame = framer.next_frame()
            if frame is None:
                return
            if data := b"" if frame.flaw is not None else _readable(frame.data, dialect):
                yield data
    except READ_ERRORS:
        return  # the partition that reads there reports the damage and the position
    finally:
        stream.close()


def _readable(frame: Bytes, dialect: Dialect) -> Bytes:
    """Return ``frame`` as valid UTF-8 for type inference: Arrow does not skip rows that it cannot decode."""
    frame = without_comments(frame, dialect)
    data = b"".join(lines for lines, is_whole in split_lines(frame, dialect) if is_whole) if dialect.one_line else frame
    return data if data.isascii() else data.decode(errors="replace").encode()


def _usable_types(found: pa.Table) -> pa.Schema:
    """Return the types of ``found`` with all times in microseconds: later values may have fractions.

    Times that microseconds would change stay text.
    """
    import pyarrow as pa

    names, columns = found.column_names, found.columns
    return pa.schema([(name, _usable_type(column)) for name, column in zip(names, columns, strict=True)])


def _usable_type(column: pa.ChunkedArray) -> pa.DataType:
    import pyarrow as pa

    kind = in_microseconds(column.type)
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return pa.string()
    return kind


def number_like_text(column: pa.ChunkedArray, decimal: str = ".") -> bool:
    """Return whether an int is written as no int is: with leading zeros, a plus, ``-0`` or in hex.

    Also if all values are ints and one does not fit 64 bits.

    >>> import pyarrow as pa
    >>> number_like_text(pa.chunked_array([["00501", "1"]])), number_like_text(pa.chunked_array([["501", "0.5"]]))
    (True, False)
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
    # A pattern costs several times as much as a search for a text, so it sees only what may match.
    whole = column.filter(pc.invert(pc.match_substring(column, decimal)))
    if pc.any(pc.match_substring_regex(whole, r"^\s*([+-]?0[0-9]+|\+[0-9]+|-0|-?0[xX][0-9a-fA-F]+)\s*$")).as_py():
        return True
    long = whole.filter(pc.greater_equal(pc.binary_length(whole), 19)).to_pylist()
    if not long or len(whole) < len(column) - column.null_count:
        return False
    if not pc.all(pc.match_substring_regex(whole, r"^\s*[+-]?[0-9]+\s*$")).as_py():
        return False
    return any(len(text.strip()) > 20 or not -(1 << 63) <= int(text) < 1 << 63 for text in long)


def _kept_as_written(found: pa.Schema, frame: Bytes, names: list[str], dialect: Dialect) -> pa.Schema:
    """Return ``found`` with str for columns whose values numbers would not preserve."""
    import pyarrow as pa

    numbers = [field.name for field in found if field.type in (pa.int64(), pa.float64())]
    if not numbers or len(set(names)) < len(names):
        return found
    as_text = _text_options(numbers, dialect)
    texts = read_block(frame, names, as_text, dialect, on_malformed=_skip)
    as_written = {name for name in numbers if number_like_text(texts[name], dialect.decimal)}
    return pa.schema([(field.name, pa.string() if field.name in as_written else field.type) for field in found])


def _text_options(columns: Sequence[str], dialect: Dialect) -> pa_csv.ConvertOptions:
    """Return the options with which Arrow reads ``columns`` alone, as text."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    kinds = dict.fromkeys(columns, pa.string())
    return pa_csv.ConvertOptions(column_types=kinds, include_columns=columns, **null_options(dialect))


def _skip(_row: pa_csv.InvalidRow) -> str:
    return "skip"
