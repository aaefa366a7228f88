"""JSON Lines: one object per line. Lines are independent, so their fields and types may differ."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import Any, Final
from uuid import UUID

import msgspec

from malstrom_py.data.batch import Batch
from malstrom_py.data.row_form import fields_of
from malstrom_py.data.rows_to_columns import RowColumns, check_names
from malstrom_py.data.unfit_values import is_unicode
from malstrom_py.errors import SinkError
from malstrom_py.errors.text import describe_error
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.encoding import KeyRule, check_partition_columns
from malstrom_py.sinks.files.partitions import split
from malstrom_py.sinks.staged.writing import EncodedRows, Encoder, RollingFiles


class JsonEncoder(Encoder[bytes]):
    """Encodes rows as lines of text. Batches of columns are converted to rows first."""

    def __init__(self, files: RollingFiles, partition_by: Sequence[str]) -> None:
        self._files = files
        self._partition_by = partition_by
        self._key_rule = KeyRule()
        self._partitions = RowColumns(SinkError)

    def encode(self, batch: Batch) -> Iterable[EncodedRows[bytes]]:
        rows = fields_of(batch.values)
        check_names(set().union(*rows), SinkError)
        keys = batch.keys
        if keys is not None and self._key_rule.is_written(sum("key" in row for row in rows), len(rows)):
            rows = [{"key": key, **row} for key, row in zip(keys, rows, strict=True)]
        return [_piece(folder, _lines(part), len(part)) for folder, part in self._by_folder(rows)]

    def merge(self, folder: str, contents: Sequence[bytes]) -> EncodedRows[bytes]:
        content = b"".join(contents)
        return _piece(folder, content, content.count(b"\n"))

    def write(self, folder: str, contents: Sequence[bytes]) -> None:
        for content in contents:
            self._files.current(folder).stream.write(content)
            self._files.roll(folder)

    def finish(self, context: CommitContext) -> None:
        self._files.finish_all()

    def _by_folder(self, rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        names = self._partition_by
        if not names:
            yield "", rows
            return
        check_partition_columns(names, rows, {})
        columns = self._partitions.convert([{name: row[name] for name in names} for row in rows])
        for folder, indices in split(names, columns.columns):
            picked = rows if indices is None else [rows[index] for index in indices.to_pylist()]
            rest = [{name: value for name, value in row.items() if name not in names} for row in picked]
            if not all(rest):
                raise SinkError("a value has only partition columns, so the files would have none: add a field")
            yield folder, rest


def _piece(folder: str, content: bytes, rows: int) -> EncodedRows[bytes]:
    return EncodedRows(folder, content, rows, sys.getsizeof(content))


def _lines(rows: list[dict[str, Any]]) -> bytes:
    if (lines := plain_lines(rows)) is not None:
        return lines
    try:
        return "\n".join(map(json_line, rows)).encode() + b"\n"
    except UnicodeEncodeError:
        row = next(row for row in rows if not is_unicode(json_line(row)))
        names = [name for name in row if not is_unicode(json_line({name: row[name]}))]
        what = f"column {names[0]!r} holds text that" if is_unicode(names[0]) else "a column's name"
        raise SinkError(f"{what} is not valid Unicode, with a lone surrogate: repair it in a map step") from None


_PLAIN: Final = frozenset({int, float, str, bool, NoneType})


def plain_lines(rows: list[dict[str, Any]]) -> bytes | None:
    r"""Return the lines of rows of plain values, in a third of the time; None for others.

    The bytes are those of `json_line`: so floats that one of the two encoders writes with an exponent are not plain.

    >>> plain_lines([{"n": 1, "text": "é"}, {"x": -0.5}])
    b'{"n": 1, "text": "\xc3\xa9"}\n{"x": -0.5}\n'
    >>> plain_lines([{"x": 1e-9}]), plain_lines([{"n": [1]}])
    (None, None)
    """
    values = list(chain.from_iterable(map(dict.values, rows)))
    if not (types := set(map(type, values))) <= _PLAIN:
        return None
    if float in types and any(type(value) is float and value and not 1e-4 <= abs(value) < 1e16 for value in values):
        return None
    try:
        return b"\n".join([_one_line(_encode_plain(row), indent=0) for row in rows]) + b"\n"
    except Exception:  # half a character, or a name of a class: `json_line` decides
        return None


def json_value(value: Any) -> Any:
    """Return what JSON has instead of ``value``; `TypeError` if it has nothing."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    fields = fields_of([value])[0]
    if fields.keys() == {"value"} and fields["value"] is value:
        raise TypeError(type(value).__name__)
    return fields


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return value


def _finite_json_value(value: Any) -> Any:
    """Convert as `json_value` does, and replace NaN inside the value."""
    return _without_nan(json_value(value))


_encode_plain: Final = msgspec.json.Encoder().encode
_one_line: Final = msgspec.json.format

# json.dumps would create an encoder for each row.
_encode_json: Final = json.JSONEncoder(default=json_value, allow_nan=False, ensure_ascii=False).encode
_encode_finite: Final = json.JSONEncoder(default=_finite_json_value, allow_nan=False, ensure_ascii=False).encode


def json_line(row: dict[str, Any]) -> str:
    """Return a row as a line of JSON, without the end of the line; `SinkError` if JSON has no such value."""
    try:
        try:
            return _encode_json(row)
        except ValueError:  # JSON has neither NaN nor infinity.
            return _encode_finite(_without_nan(row))
    except (TypeError, ValueError, RecursionError) as error:
        kinds = ", ".join(f"{name!r}: {type(value).__name__}" for name, value in list(row.items())[:20])
        raise SinkError(
            f"a value cannot be written as JSON ({describe_error(error)}; {kinds}): convert it in a map step"
        ) from None
