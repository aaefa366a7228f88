"""The options of `sources.Files`, checked at the call, and the schemas of files: merged, packed, compared.

A source finds its column types once and stores them as bytes in every position. Nanoseconds become microseconds, which
is the precision of Python's datetime, time and timedelta; a value that would lose digits makes its record malformed.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import in_microseconds, map_inside, stored_type, widens_to, wider_type
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.files.csv import ColumnType
from malstrom_py.sources.files.csv_records import COMMA, Dialect
from malstrom_py.sources.files.listing import COMPRESSIONS, FORMATS, FileFormat
from malstrom_py.validation import checked_flag

if TYPE_CHECKING:
    import pyarrow as pa


def without_nanoseconds(found: pa.DataType) -> pa.DataType:
    """Return ``found`` with nanoseconds as microseconds and views as lists, inside nested types too.

    >>> import pyarrow as pa
    >>> without_nanoseconds(pa.list_(pa.timestamp("ns", "UTC")))
    ListType(list<item: timestamp[us, tz=UTC]>)
    """
    from pyarrow import types

    if getattr(found, "unit", None) == "ns":
        return in_microseconds(found)
    if types.is_dictionary(found):
        return without_nanoseconds(found.value_type)
    return map_inside(found, without_nanoseconds)


def adapted(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` without nanoseconds and without metadata."""
    import pyarrow as pa

    return pa.schema([field.with_type(without_nanoseconds(field.type)).remove_metadata() for field in schema])


def merge_types(schemas: Iterator[pa.Schema], only: Collection[str] | None = None) -> pa.Schema | None:
    """Return the first schema; a null column takes the first other type in a later schema, else string.

    ``only``: the columns whose types are needed; others stay null. Reads no more of ``schemas`` than needed; None if
    there are none.
    """
    import pyarrow as pa

    found: dict[str, pa.DataType] = {}
    for schema in schemas:
        if not found:
            found = dict(zip(schema.names, schema.types, strict=True))
        for name in untyped(found, only):
            if name in schema.names:
                found[name] = schema.field(name).type
        if not untyped(found, only):
            break
    if not found:
        return None
    return pa.schema({**found, **dict.fromkeys(untyped(found, only), pa.string())}.items())


def untyped(found: Mapping[str, pa.DataType], only: Collection[str] | None) -> list[str]:
    """Return the columns of type null in ``found``, of ``only`` or all."""
    import pyarrow as pa

    return [name for name, kind in found.items() if pa.types.is_null(kind) and (only is None or name in only)]


def union_types(schemas: Iterator[pa.Schema]) -> pa.Schema | None:
    """Return all columns of all ``schemas``, each in a type that holds the values of all; null ones as string.

    Types that have none in common stay as they were first: a file with the other one is refused when it is opened.

    >>> import pyarrow as pa
    >>> union_types(iter([pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64()), ("b", pa.bool_())])])).names
    ['a', 'b']
    """
    import pyarrow as pa

    found: dict[str, pa.DataType] | None = None
    for schema in schemas:
        known = found or {}
        found = {**known, **{field.name: _wider(known.get(field.name), field.type) for field in schema}}
    if found is None:
        return None
    return pa.schema([(name, pa.string() if pa.types.is_null(kind) else kind) for name, kind in found.items()])


def _wider(known: pa.DataType | None, found: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if known is None or (known != found and pa.types.is_null(known)):
        return found
    if known == found or pa.types.is_null(found) or widens_to(found, known):
        return known
    if widens_to(known, found):
        return found
    try:
        return without_nanoseconds(wider_type(stored_type(known), stored_type(found)))
    except pa.ArrowException:
        return known


def pack_schema(schema: pa.Schema) -> bytes:
    """Return ``schema`` as bytes, for a position."""
    packed: bytes = schema.serialize().to_pybytes()
    return packed


def unpack_schema(packed: bytes) -> pa.Schema:
    """Return the schema that `pack_schema` packed."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(packed))


def check_columns(
    path: str, names: Iterable[str], first: str, expected: Iterable[str], *, others: bool = False
) -> None:
    """Raise `SourceError` unless ``path`` has exactly the ``expected`` columns of the ``first`` file, in any order.

    ``others``: whether it may have other columns besides.
    """
    names, expected = list(names), list(expected)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(f"{path} has more than one column named {_listed(repeated)}: give each its own name")
    missing = [name for name in expected if name not in names]
    extra = [] if others else [name for name in names if name not in expected]
    if missing or extra:
        differences = [f"lacks {_listed(missing)}"] if missing else []
        differences += [f"has {_listed(extra)} besides"] if extra else []
        raise SourceError(
            f"{path} has other columns than {first}: it {' and '.join(differences)}. "
            f"Read files with different columns as separate sources."
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(repr(name) for name in names[:10]) + more


_ONLY_FOR: Final = {
    "columns": (("csv", "parquet"), ", and take the fields in a map step"),
    "rows": (("csv", "parquet"), ", and take the fields in a map step"),
    "encoding": (("csv", "json", "text"), ""),
    "timezone": (("csv", "parquet"), ", and make times aware in a step"),
}
"""The formats that have an option, and what to do instead of it. Other options are for csv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `sources.Files`; ``format`` is None until it is known from the files.

    `PlanError`: an option is invalid.
    """

    format: FileFormat | None
    types: Mapping[str, ColumnType]
    timezone: str | None
    split_bytes: int | None
    follow: bool
    new_files: bool
    columns: tuple[str, ...] | None = None
    rows: type = dict
    dialect: Dialect = COMMA

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in tuple(FORMATS):
            raise PlanError(f"sources.Files: format must be one of {', '.join(FORMATS)}, got {self.format!r}")
        if self.split_bytes is not None and (
            not isinstance(self.split_bytes, int) or isinstance(self.split_bytes, bool) or self.split_bytes < 1
        ):
            raise PlanError(
                f"sources.Files: split_bytes must be a whole number of bytes of at least 1, or None to split no file, "
                f"got {self.split_bytes!r}"
            )
        checked_flag(self.follow, "sources.Files: follow")
        checked_flag(self.new_files, "sources.Files: new_files")
        if self.follow and self.new_files:
            raise PlanError("sources.Files: follow=True reads new files anyway: leave out new_files")

    def with_format(self, file_format: FileFormat | None) -> Options:
        """Return the options for ``file_format``; `PlanError` if an option does not apply to it."""
        dialect = self.dialect
        for name, is_given in (
            ("null_values", dialect.null_values is not None),
            ("types", bool(self.types)),
            ("newlines_in_values", dialect.one_line),
            ("delimiter", dialect.delimiter is not None),
            ("header", not dialect.header),
            ("names", dialect.names is not None),
            ("comment", dialect.comment is not None),
            ("decimal", dialect.decimal != "."),
            ("columns", self.columns is not None),
            ("rows", self.rows is not dict),
            ("encoding", dialect.encoding is not None),
            ("timezone", self.timezone is not None),
        ):
            formats, instead = _ONLY_FOR.get(name, (("csv",), ""))
            if is_given and file_format not in {None, *formats}:
                which = " and ".join(", ".join(formats).rsplit(", ", 1))
                raise PlanError(
                    f"sources.Files: {name} is for {which} files, these are {file_format}: leave it out{instead}"
                )
        return replace(self, format=file_format)

    def split_bytes_of(self, file: str) -> int | None:
        """Return the size of the sections of ``file``; None if it is read as a whole.

        Compressed data, other encodings than UTF-8, and csv whose values may hold line ends, can only be read from the
        start.
        """
        if self.dialect.encoding is not None:
            return None
        if PurePath(file).suffix.lower() in COMPRESSIONS or (self.format == "csv" and not self.dialect.one_line):
            return None
        return self.split_bytes


def check_dialect(newlines_in_values: object, **given: Any) -> Dialect:
    """Return how csv files are written; raise `PlanError` for an argument that is wrong.

    >>> found = check_dialect(False, delimiter=";", encoding="latin-1", decimal=",")
    >>> found.separator, found.encoding, found.decimal, found.one_line
    (';', 'iso8859-1', ',', True)
    """
    asked = Dialect(**given, one_line=not checked_flag(newlines_in_values, "sources.Files: newlines_in_values"))
    delimiter, decimal, comment = asked.delimiter, asked.decimal, asked.comment
    if delimiter is not None and not _is_separator(delimiter):
        raise PlanError(
            f'sources.Files: delimiter must be one ASCII character, such as ";" or "\\t", and no quote, line end, '
            f"letter, digit or sign of a number, got {delimiter!r}"
        )
    if decimal not in {".", ","}:
        raise PlanError(f'sources.Files: decimal must be "." or ",", got {decimal!r}')
    if decimal == asked.separator:
        raise PlanError(
            f"sources.Files: decimal and delimiter are both {decimal!r}: name what separates fields, such as "
            f'delimiter=";"'
        )
    if comment is not None and (
        not isinstance(comment, str) or not comment or not comment.isascii() or set(comment) & {'"', "\r", "\n"}
    ):
        raise PlanError(f'sources.Files: comment must be what comments begin with, such as "#", got {comment!r}')
    if comment is not None and comment.startswith(asked.separator):
        raise PlanError(
            f"sources.Files: comment={comment!r} begins with the delimiter: records with an empty first field do"
        )
    if not checked_flag(asked.header, "sources.Files: header") and asked.names is None:
        raise PlanError('sources.Files: header=False needs the names of the columns, such as names=["item", "pieces"]')
    return replace(
        asked,
        names=_checked_names(asked.names),
        encoding=_checked_encoding(asked.encoding),
        null_values=_checked_nulls(asked.null_values),
    )


def _is_separator(delimiter: object) -> bool:
    return (
        isinstance(delimiter, str)
        and len(delimiter) == 1
        and delimiter.isascii()
        and not delimiter.isalnum()
        and delimiter not in '"\r\n\0.-+'
    )


def _checked_names(names: object) -> tuple[str, ...] | None:
    if names is None:
        return None
    found = list(names) if isinstance(names, list | tuple) else [None]
    if not found or not all(isinstance(name, str) for name in found) or len(set(found)) < len(found):
        raise PlanError('sources.Files: names must be a list of different names, such as names=["item", "pieces"]')
    return tuple(map(str, found))


def _checked_encoding(encoding: object) -> str | None:
    """Return the name of ``encoding``; None for UTF-8, which needs no conversion."""
    if encoding is None:
        return None
    try:
        found = codecs.lookup(encoding) if isinstance(encoding, str) else None
        is_text = found is not None and isinstance(found.decode(b"")[0], str)
    except (LookupError, ValueError, UnicodeError, TypeError):
        found, is_text = None, False
    if found is None or not is_text:
        raise PlanError(
            f'sources.Files: encoding must be the name of one that Python knows, such as "latin-1" or "utf-16", got '
            f"{encoding!r}"
        )
    return None if found.name in {"utf-8", "utf-8-sig", "ascii"} else found.name


def _checked_nulls(null_values: object) -> tuple[str, ...] | None:
    if null_values is None:
        return None
    values = list(null_values) if isinstance(null_values, Iterable) and not isinstance(null_values, str) else [None]
    if not all(isinstance(value, str) for value in values):
        raise PlanError('sources.Files: null_values must be a list of str, for instance null_values=["NA"]')
    return tuple(map(str, values))
