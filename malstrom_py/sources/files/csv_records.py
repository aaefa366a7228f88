"""The records of csv (RFC 4180): how a file is written, and where records begin and end.

A line end inside quotes belongs to the record. A field is quoted only if its first character is a quote, and
two quotes are an escaped one, as in Arrow's parser. The patterns are possessive, so time is linear. With
``newlines_in_values=False`` every line is a record, so reading can start at any line; a line whose quotes do not make
whole fields (an unclosed quote, or one inside an unquoted field) is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from malstrom_py.sources.files.csv_scan import last_end
from malstrom_py.sources.files.frames import Bytes, Cut


@dataclass(frozen=True, slots=True)
class Dialect:
    """How csv files are written: what separates fields, begins a comment, and is before the digits of fractions.

    ``header``: whether the first record names the columns; ``names``: their names, in place of those. ``null_values``:
    the fields that are None, besides empty ones. ``one_line``: no value holds a line end.
    """

    delimiter: str | None = None
    header: bool = True
    names: tuple[str, ...] | None = None
    encoding: str | None = None
    comment: str | None = None
    decimal: str = "."
    null_values: tuple[str, ...] | None = None
    one_line: bool = False

    @property
    def separator(self) -> str:
        """What separates fields."""
        return self.delimiter or ","


COMMA: Final = Dialect()


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Possessive patterns of records, comments among them. ``whole_lines``: lines whose quotes make whole fields."""

    whole_records: re.Pattern[bytes]
    last_record: re.Pattern[bytes]
    one_record: re.Pattern[bytes]
    whole_lines: re.Pattern[bytes]


@cache
def _patterns(separator: str, comment: str | None) -> _Patterns:
    at = re.escape(separator.encode())
    field = rb'(?:"(?:[^"]++|"")*+"[^%s\r\n]*+|(?!")[^%s\r\n]*+)' % (at, at)
    line_field = rb'(?:"(?:[^"\r\n]++|"")*+"|(?!")[^%s"\r\n]*+)(?=[%s\r\n]|\Z)' % (at, at)
    record, line = (rb"%s(?:%s%s)*+" % (one, at, one) for one in (field, line_field))
    if comment is not None:
        mark = re.escape(comment.encode())
        record, line = (rb"(?:%s[^\r\n]*+|(?!%s)%s)" % (mark, mark, one) for one in (record, line))
    return _Patterns(
        # A \r at the very end may be the first half of \r\n.
        whole_records=re.compile(rb"(?:%s(?:\n|\r\n|\r(?!\n|\Z)))*+" % record),
        last_record=re.compile(rb"%s\r?\Z" % record),
        one_record=re.compile(rb"%s(?:\r\n|\n|\r|\Z)" % record),
        whole_lines=re.compile(rb"(?:%s(?:\r\n|\n|\r))*+(?:%s\Z)?+" % (line, line)),
    )


def cut_records(window: Bytes, ended: bool, dialect: Dialect = COMMA) -> int:
    r"""Return the end of the last whole record; at the end of a file it needs no line end, but closed quotes.

    >>> cut_records(b'1,"a\nb"\n2,"c\n', ended=False)
    8
    """
    if b'"' not in window:
        return cut_csv_lines(window, ended)
    patterns = _patterns(dialect.separator, dialect.comment)
    end = last_end(window) if dialect.separator == "," and dialect.comment is None else None
    if end is None:
        match = patterns.whole_records.match(window)
        end = match.end() if match is not None else 0
    return len(window) if ended and patterns.last_record.match(window, end) else end


def split_records(frame: Bytes, *, with_empty: bool = False, dialect: Dialect = COMMA) -> list[tuple[int, int]]:
    r"""Return start and end of each record, line end included; empty lines count only if ``with_empty``.

    >>> split_records(b'1,"a\nb"\n\n2,c')
    [(0, 8), (9, 12)]
    """
    spans: list[tuple[int, int]] = []
    one_record, position = _patterns(dialect.separator, dialect.comment).one_record, 0
    while position < len(frame):
        match = one_record.match(frame, position)
        end = match.end() if match is not None else len(frame)
        if with_empty or frame[position:end].strip(b"\r\n"):
            spans.append((position, end))
        position = end
    return spans


def split_bytes(frame: Bytes, *, with_empty: bool = False, dialect: Dialect = COMMA) -> list[Bytes]:
    r"""Return each record with its line end; empty lines count only if ``with_empty``.

    >>> split_bytes(b'1,"a\nb"\n\n2,c')
    [b'1,"a\nb"\n', b'2,c']
    """
    if b'"' in frame and not dialect.one_line:
        return [frame[start:end] for start, end in split_records(frame, with_empty=with_empty, dialect=dialect)]
    lines = bytes(frame).splitlines(keepends=True)
    return list(lines) if with_empty else [line for line in lines if len(line) > 2 or line.strip(b"\r\n")]


QUOTES_FLAW: Final = (
    "its quotes do not make whole fields on this line (newlines_in_values=False): a value that holds line ends, or a "
    "quote in a field that is not quoted"
)

_ONE_LINE: Final = re.compile(rb"[^\r\n]*+(?:\r\n|\n|\r|\Z)")


def cut_csv_lines(window: Bytes, ended: bool) -> int:
    r"""Return the end of the last whole line, ignoring quotes; a ``\r`` at the end may be half of ``\r\n``.

    >>> cut_csv_lines(b'1,"a\nb"\r', ended=False)
    5
    """
    return len(window) if ended else max(window.rfind(b"\n"), window.rfind(b"\r", 0, len(window) - 1)) + 1


def split_lines(frame: Bytes, dialect: Dialect = COMMA) -> Iterator[tuple[Bytes, bool]]:
    r"""Yield runs of lines whose quotes make whole fields (True), and single lines whose quotes do not (False).

    >>> list(split_lines(b'1,"a"\n2,"b\nc"\n3,d'))
    [(b'1,"a"\n', True), (b'2,"b\n', False), (b'c"\n', False), (b'3,d', True)]
    """
    whole_lines, position = _patterns(dialect.separator, dialect.comment).whole_lines, 0
    while position < len(frame):
        match = whole_lines.match(frame, position) if b'"' in frame else None
        end = match.end() if match is not None else len(frame)
        if end > position:
            yield frame[position:end], True
        position = end
        if position < len(frame) and (line := _ONE_LINE.match(frame, position)):
            yield frame[position : line.end()], False
            position = line.end()


def has_whole_lines(lines: Bytes, dialect: Dialect = COMMA) -> bool:
    r"""Return whether the quotes of each of ``lines`` make whole fields.

    >>> has_whole_lines(b'1,"a"\n'), has_whole_lines(b'2,"b\nc"\n')
    (True, False)
    """
    return b'"' not in lines or _patterns(dialect.separator, dialect.comment).whole_lines.fullmatch(lines) is not None


def without_comments(frame: Bytes, dialect: Dialect) -> Bytes:
    r"""Return ``frame`` without its comments: records that begin with the mark of comments.

    >>> without_comments(b'# a "note\n1,"x\n# y"\n', Dialect(comment="#"))
    b'1,"x\n# y"\n'
    """
    mark = (dialect.comment or "").encode()
    if not mark or not (frame.startswith(mark) or b"\n" + mark in frame or b"\r" + mark in frame):
        return frame
    spans = (
        (match.span() for match in _ONE_LINE.finditer(frame))
        if dialect.one_line
        else split_records(frame, with_empty=True, dialect=dialect)
    )
    return b"".join(frame[start:end] for start, end in spans if not frame.startswith(mark, start))


def cutter(dialect: Dialect) -> Cut:
    """Return what finds the end of the last whole record."""
    return cut_csv_lines if dialect.one_line else partial(cut_records, dialect=dialect)
