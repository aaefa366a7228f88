"""CSV: the types of columns, and the decoder of frames of whole records (`csv_records`) to Arrow columns.

Some columns: where they are at most half of the fields, only they reach Arrow, of a frame that is certain to have whole
records only (`csv_scan`) and good values only. Any other frame is decoded as a whole, so results do not differ.

Decoding: Arrow rejects a whole block for one bad value. Then all fields are read as bytes, and those that cannot be of
their type are found column by column (`csv_values`). Arrow still decodes every good record, and what it then refuses
is cut out: such a record, which is rare, costs a few small parses. An empty line is skipped; in a file of one column
it is a record with an empty field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.data.schema import ColumnKind, kind_of, type_of
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import instead_of
from malstrom_py.sources.files.csv_records import (
    COMMA,
    QUOTES_FLAW,
    Dialect,
    cut_records,
    has_whole_lines,
    split_bytes,
    without_comments,
)
from malstrom_py.sources.files.csv_scan import Projection
from malstrom_py.sources.files.csv_values import unreadable
from malstrom_py.sources.files.frames import Bytes, Run, Sifted, others, text_of
from malstrom_py.sources.files.zones import NoSuchTime, check_holdable, zoned

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.csv as pa_csv


ColumnType = Literal["bool", "date", "decimal", "float64", "int64", "str", "time", "timestamp", "timestamp_utc"]
COLUMN_TYPES: Final[Mapping[ColumnType, ColumnKind]] = {
    "bool": ColumnKind.BOOL,
    "date": ColumnKind.DATE,
    "decimal": ColumnKind.DECIMAL,
    "float64": ColumnKind.FLOAT,
    "int64": ColumnKind.INT,
    "str": ColumnKind.STR,
    "time": ColumnKind.TIME,
    "timestamp": ColumnKind.NAIVE,
    "timestamp_utc": ColumnKind.ZONED,
}


DECIMAL_DIGITS: Final = (38, 9)
"""Of the type ``decimal``: so many digits, and so many of them after the point, as NUMERIC has in SQL engines."""


def arrow_type(name: ColumnType) -> pa.DataType:
    """Return the Arrow type of a name in `COLUMN_TYPES`.

    >>> arrow_type("timestamp_utc")
    TimestampType(timestamp[us, tz=UTC])
    """
    import pyarrow as pa

    return pa.decimal128(*DECIMAL_DIGITS) if name == "decimal" else type_of(COLUMN_TYPES[name])


def _word(kind: pa.DataType) -> str:
    """Return the name of ``kind`` in `COLUMN_TYPES`, which is the user's word for it."""
    return next((name for name in COLUMN_TYPES if arrow_type(name) == kind), str(kind))


def check_types(types: object) -> dict[str, ColumnType]:
    """Return the user's ``types``; raise `PlanError` unless they map column names to names of `COLUMN_TYPES`."""
    if types is None:
        return {}
    if not isinstance(types, Mapping) or not all(isinstance(name, str) for name in types):
        raise PlanError('sources.Files: types must be a dict, column -> type, for instance types={"zip": "str"}')
    for name, kind in types.items():
        if kind not in tuple(COLUMN_TYPES):
            shown = repr(kind) if isinstance(kind, str) else f"a {type(kind).__name__}"
            raise PlanError(
                f"sources.Files: the type of {name!r} must be one of {', '.join(COLUMN_TYPES)}, got {shown}"
            )
    return dict(types)


def with_types(part: str, schema: pa.Schema, types: Mapping[str, ColumnType]) -> pa.Schema:
    """Return the ``schema`` of the file ``part`` with the given ``types``; `SourceError` if it lacks a column."""
    import pyarrow as pa

    if missing := sorted(set(types).difference(schema.names)):
        named = ", ".join(map(repr, missing))
        raise SourceError(f"{part} has no column {named}, which types= names{instead_of(missing[0], schema.names)}")
    return pa.schema(
        [(field.name, arrow_type(types[field.name]) if field.name in types else field.type) for field in schema]
    )


_PIECE_RECORDS: Final = 512
_CAST: Final = ("int64", "double", "string")
"""The types whose texts a cast reads as Arrow's csv reader does, but for spaces around numbers."""
_FIELD_COUNT: Final = re.compile(r"Expected (\d+) columns, got (\d+)")
_ROW: Final = re.compile(r"Row #(\d+): ")
_COLUMN: Final = re.compile(r"In CSV column #(\d+): ")


_NINE_DIGITS: Final = re.compile(rb":[0-9]{2}\.[0-9]{7,9}(?![0-9])")


def with_nanoseconds(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with times in nanoseconds."""
    import pyarrow as pa

    def fine(kind: pa.DataType) -> pa.DataType:
        match kind_of(kind):
            case ColumnKind.NAIVE | ColumnKind.ZONED:
                return pa.timestamp("ns", kind.tz)
            case ColumnKind.TIME:
                return pa.time64("ns")
        return kind

    return pa.schema([(field.name, fine(field.type)) for field in schema])


class CsvDecoder:
    """Decodes frames of a file with the columns ``names`` (in file order) to the columns of ``schema``.

    ``given``: the columns whose types the user named. ``timezone``: the zone of times without one. ``dialect``: how the
    file is written.
    """

    def __init__(
        self,
        names: Sequence[str],
        schema: pa.Schema,
        given: Collection[str],
        *,
        timezone: str | None = None,
        dialect: Dialect = COMMA,
    ) -> None:
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        self._had_bad = False
        self._names = list(names)
        self._given = given
        self._timezone = timezone
        self._schema = schema
        self._none = pa.RecordBatch.from_pylist([], schema=schema)
        # Up to half of the fields, it costs less to leave out the others than to have Arrow separate them all.
        is_few = 0 < 2 * len(schema) <= len(names) and dialect.separator == "," and dialect.decimal == "."
        as_text = [field.name for field in schema if not dialect.null_values and str(field.type) in _CAST]
        is_one_line = dialect.one_line
        self._projection = Projection(names, schema.names, as_text, one_line=is_one_line) if is_few else None
        self._dialect = dialect
        nulls = null_options(dialect)
        self._convert = pa_csv.ConvertOptions(column_types=schema, include_columns=schema.names, **nulls)
        self._convert_raw = pa_csv.ConvertOptions(column_types=schema, **nulls)
        self._as_bytes = pa_csv.ConvertOptions(column_types=dict.fromkeys(self._names, pa.binary()), **nulls)
        in_ns = with_nanoseconds(schema)
        self._convert_fine = (
            pa_csv.ConvertOptions(column_types=in_ns, include_columns=in_ns.names, **nulls) if in_ns != schema else None
        )

    def runs(self, frame: Bytes) -> list[Run]:
        """Return the rows of ``frame`` as record batches, with the bad records between them."""
        import pyarrow as pa

        frame = without_comments(frame, self._dialect)
        if not frame:
            return []
        if not self._had_bad:  # else this frame most likely has bad records as well
            if self._projection is not None and (batch := self._projected(frame, self._projection)) is not None:
                return [batch]
            if not self._dialect.one_line or has_whole_lines(frame, self._dialect):
                with suppress(pa.ArrowInvalid, NoSuchTime):
                    return [self._parse(frame)]
        with_empty = len(self._names) == 1
        found = self._sift(split_bytes(frame, with_empty=with_empty, dialect=self._dialect))
        self._had_bad = bool(found.at)
        return [found if found.at else found.rows]

    def _projected(self, frame: Bytes, projection: Projection) -> pa.RecordBatch | None:
        """Return the rows of ``frame``; None if they are not certain to be good, each of them."""
        import pyarrow as pa

        split = projection.split(frame)
        if split is None:
            return None
        texts, lines = split
        try:
            found = {name: _cast(text, self._schema.field(name).type) for name, text in texts.items()}
            if lines is not None:
                batch = read_block(lines, projection.raw, self._convert_raw).combine_chunks().to_batches()[0]
                found |= zip(projection.raw, batch.columns, strict=True)
            batch = pa.RecordBatch.from_arrays([found[field.name] for field in self._schema], schema=self._schema)
            return self._checked(batch)
        except (pa.ArrowInvalid, NoSuchTime):
            return None

    def _sift(self, records: Sequence[Bytes]) -> Sifted:
        """Return the good ones of ``records`` as columns, and the others."""
        flaws = self._quote_flaws(records)
        even = others(len(records), flaws)
        found = self._flaws(_at(records, even))
        flaws |= {even[row]: why for row, why in (found or {}).items()}
        rows = None if found is None else self._good(records, flaws)
        if rows is None:
            rows = self._cut_out(records, flaws)
        return Sifted(rows, sorted(flaws), flaws, lambda row: text_of(records[row]))

    def _quote_flaws(self, records: Sequence[Bytes]) -> dict[int, str]:
        if not self._dialect.one_line:
            return {}
        return {row: QUOTES_FLAW for row, line in enumerate(records) if not has_whole_lines(line, self._dialect)}

    def _good(self, records: Sequence[Bytes], flaws: dict[int, str]) -> pa.RecordBatch | None:
        """Return the ``records`` not in ``flaws``, to which it adds those with times that none can hold.

        None: Arrow refuses others as well.
        """
        import pyarrow as pa

        while True:
            left = others(len(records), flaws)
            try:
                return self._parse(b"".join(_at(records, left)))
            except NoSuchTime as error:
                if not error.rows:
                    return None
                flaws |= dict.fromkeys((left[row] for row in error.rows), str(error))
            except pa.ArrowInvalid:
                return None

    def _cut_out(self, records: Sequence[Bytes], flaws: dict[int, str]) -> pa.RecordBatch:
        """Return the ``records`` not in ``flaws``, to which it adds each that Arrow refuses alone."""
        import pyarrow as pa

        left = others(len(records), flaws)
        good = [self._parse(b"")]
        for place, found in self._isolate(_at(records, left)):
            if isinstance(found, str):
                flaws[left[place]] = found
            else:
                good.append(found)
        return pa.concat_batches(good)

    def _flaws(self, records: Sequence[Bytes]) -> dict[int, str] | None:
        """Return why of the rows with too many or too few fields, or a text that does not read as its type.

        They are found in one pass; None if Arrow counts other records.
        """
        import pyarrow as pa

        if not records:
            return {}
        uneven: dict[int, str] = {}

        def skip(row: pa_csv.InvalidRow) -> str:
            uneven[-1 if row.number is None else row.number - 1] = self._count_flaw(row.actual_columns)
            return "skip"

        frame = b"".join(records)
        # Arrow shows each uneven row as text, which these bytes may not be.
        shown = frame if frame.isascii() else frame.decode(errors="replace").encode()
        try:
            texts = read_block(shown, self._names, self._as_bytes, self._dialect, on_malformed=skip)
            even = others(len(records), uneven)
            if -1 in uneven or len(texts) != len(even):
                return None
            if is_damaged := shown != frame:
                texts = read_block(b"".join(_at(records, even)), self._names, self._as_bytes, self._dialect)
        except pa.ArrowInvalid:
            return None
        found = unreadable(texts, self._schema, self._dialect.decimal, with_text=is_damaged)
        whys = {name: self._value_flaw(name) for name in set(found.values())}
        return uneven | {even[row]: whys[name] for row, name in found.items()}

    def _count_flaw(self, count: int) -> str:
        by = "the header has" if self._dialect.names is None else "names= has"
        return f"{count} field{'' if count == 1 else 's'}, where {by} {len(self._names)}"

    def _isolate(self, records: Sequence[Bytes]) -> Iterator[tuple[int, str | pa.RecordBatch]]:
        """Decode ``records``, cut around each bad one: yield the place of each piece, and what is in it or its flaw."""
        import pyarrow as pa

        pieces = [range(start, start + _PIECE_RECORDS) for start in range(0, len(records), _PIECE_RECORDS)][::-1]
        while pieces:
            piece = pieces.pop()
            part = records[piece.start : piece.stop]
            try:
                yield piece.start, self._parse(b"".join(part))
            except (pa.ArrowInvalid, NoSuchTime) as error:
                if len(part) == 1:
                    yield piece.start, str(error) if isinstance(error, NoSuchTime) else self._why(str(error))
                else:
                    # Only a hint: each piece is decoded separately, so any cut is correct.
                    match = _ROW.search(str(error))
                    bad = min(int(match[1]) - 1, len(part) - 1) if match else len(part) // 2
                    at = piece.start + bad
                    cuts = [range(at + 1, piece.stop), range(at, at + 1), range(piece.start, at)]
                    pieces += [one for one in cuts if one.start < min(one.stop, len(records))]

    def _parse(self, part: Bytes) -> pa.RecordBatch:
        import pyarrow as pa

        if not part:  # Arrow refuses it
            return self._checked(self._none)
        try:
            table = read_block(part, self._names, self._convert, self._dialect)
        except pa.ArrowInvalid:
            if self._convert_fine is None or not _NINE_DIGITS.search(part):
                raise
            # Arrow takes no more digits than the unit has, not even zeros.
            table = read_block(part, self._names, self._convert_fine, self._dialect).cast(self._schema)
        return self._checked((table.combine_chunks().to_batches() or [self._none])[0])

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with times in UTC where they get a zone; raise `NoSuchTime` for those that none can hold."""
        batch = zoned(batch, self._timezone)
        check_holdable(batch, with_text=False)  # Arrow has checked the text
        return batch

    def _why(self, message: str) -> str:
        """Return Arrow's message without the value it quotes."""
        if match := _FIELD_COUNT.search(message):
            return self._count_flaw(int(match[2]))
        if match := _COLUMN.search(message):
            return self._value_flaw(self._names[int(match[1])])
        return "not readable as CSV"

    def _value_flaw(self, name: str) -> str:
        kind = self._schema.field(name).type
        if kind == arrow_type("str"):
            return f"column {name!r} is not valid UTF-8 text"
        if name in self._given:
            hint = ""
            if kind == arrow_type("timestamp_utc"):
                hint = f"; for times without a zone: types={{{name!r}: 'timestamp'}}, timezone='UTC'"
            elif kind == arrow_type("timestamp"):
                hint = f"; for times with a zone: types={{{name!r}: 'timestamp_utc'}}"
            return f"column {name!r} does not read as {_word(kind)}, the type given for it in types={hint}"
        other = "float64" if kind == "int64" else "str"
        return (
            f"column {name!r} does not read as {_word(kind)}, the type found for it at first: if the record is "
            f"right, give sources.Files another type, types={{{name!r}: {other!r}}} for instance"
        )


def _at(records: Sequence[Bytes], rows: Sequence[int]) -> Sequence[Bytes]:
    return records if len(rows) == len(records) else [*map(records.__getitem__, rows)]


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``texts``, which may not be UTF-8, as ``kind``; ArrowInvalid if Arrow's csv reader would refuse one."""
    import pyarrow as pa
    import pyarrow.compute

    if kind == texts.type:
        texts.validate(full=True)
        return texts
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        compute: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
        return compute.ascii_trim(texts, " \t").cast(kind)


def read_block(
    part: Bytes | pa.Buffer,
    names: list[str],
    convert: pa_csv.ConvertOptions,
    dialect: Dialect = COMMA,
    *,
    on_malformed: Callable[[pa_csv.InvalidRow], str] | None = None,
) -> pa.Table:
    """Return the records of ``part``, with the columns ``names``, as one block."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    if bytes(part[-2:]) == f'"{dialect.separator}'.encode():
        # After a quoted field, Arrow takes an empty one at the end of the data for a quoted one too, which is not None.
        line = b"".join((part, b"\n"))
        part = line if cut_records(line, False, dialect=dialect) == len(line) else part
    return pa_csv.read_csv(
        pa.BufferReader(part),
        read_options=pa_csv.ReadOptions(column_names=names, block_size=len(part) + 1, use_threads=False),
        parse_options=pa_csv.ParseOptions(
            delimiter=dialect.separator,
            newlines_in_values=True,  # it is one block, which nothing has to cut
            ignore_empty_lines=len(names) != 1,
            invalid_row_handler=on_malformed,
        ),
        convert_options=convert,
    )


def null_options(dialect: Dialect) -> dict[str, object]:
    """Return the options by which empty fields, and the user's null values quoted or not, are None."""
    return {
        "decimal_point": dialect.decimal,
        "null_values": ["", *(dialect.null_values or ())],
        "strings_can_be_null": True,
        "quoted_strings_can_be_null": bool(dialect.null_values),
    }
