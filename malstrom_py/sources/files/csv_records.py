"""Where CSV records begin and end (RFC 4180): a line end inside quotes belongs to the record.

A field is quoted only if a quote is its first character, and an escaped quote is two of them: the same reading as
Arrow's parser has. The patterns are possessive, so that no input makes them go back: time is linear.
"""

from __future__ import annotations

import re
from typing import Final

from malstrom_py.sources.files.csv_lines import cut_csv_lines

_FIELD: Final = rb'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|(?!")[^,\r\n]*+)'
_RECORD: Final = _FIELD + rb"(?:," + _FIELD + rb")*+"
# A \r at the very end may be the first half of \r\n.
_WHOLE_RECORDS: Final = re.compile(rb"(?:" + _RECORD + rb"(?:\n|\r\n|\r(?!\n|\Z)))*+")
_LAST_RECORD: Final = re.compile(_RECORD + rb"\r?\Z")
_ONE_RECORD: Final = re.compile(_RECORD + rb"(?:\r\n|\n|\r|\Z)")


def cut_records(window: bytes, ended: bool) -> int:
    r"""Where the last whole record ends; at the end of a file a record needs no line end, but closed quotes.

    >>> cut_records(b'1,"a\nb"\n2,"c\n', ended=False)
    8
    """
    if b'"' not in window:
        return cut_csv_lines(window, ended)
    match = _WHOLE_RECORDS.match(window)
    end = match.end() if match is not None else 0
    return len(window) if ended and _LAST_RECORD.match(window, end) else end


def split_records(frame: bytes, *, with_empty: bool = False) -> list[tuple[int, int]]:
    r"""Where each record of ``frame`` starts and ends, line end included; empty lines are none unless ``with_empty``.

    >>> split_records(b'1,"a\nb"\n\n2,c')
    [(0, 8), (9, 12)]
    """
    spans: list[tuple[int, int]] = []
    position = 0
    while position < len(frame):
        match = _ONE_RECORD.match(frame, position)
        end = match.end() if match is not None else len(frame)
        if with_empty or frame[position:end].strip(b"\r\n"):
            spans.append((position, end))
        position = end
    return spans
