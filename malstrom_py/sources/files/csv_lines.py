r"""CSV in which every line is a record (``newlines_in_values=False``), so that reading may begin at any line.

Whether a line end stands inside quotes can only be told by everything before it. Here none does: a line whose quotes
do not make whole fields (one is not closed, or stands inside a field that is not quoted) is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

QUOTES_FLAW: Final = (
    "its quotes do not make whole fields on this line (newlines_in_values=False): a value that holds line ends, or a "
    "quote in a field that is not quoted"
)

_FIELD: Final = rb'(?:"(?:[^"\r\n]++|"")*+"|(?!")[^,"\r\n]*+)(?=[,\r\n]|\Z)'
_LINE: Final = _FIELD + rb"(?:," + _FIELD + rb")*+"
_WHOLE_LINES: Final = re.compile(rb"(?:" + _LINE + rb"(?:\r\n|\n|\r))*+(?:" + _LINE + rb"\Z)?+")
_ONE_LINE: Final = re.compile(rb"[^\r\n]*+(?:\r\n|\n|\r|\Z)")


def cut_csv_lines(window: bytes, ended: bool) -> int:
    r"""Where the last whole line ends, whatever the quotes say; a ``\r`` at the end may be half of ``\r\n``.

    >>> cut_csv_lines(b'1,"a\nb"\r', ended=False)
    5
    """
    return len(window) if ended else max(window.rfind(b"\n"), window.rfind(b"\r", 0, len(window) - 1)) + 1


def split_lines(frame: bytes) -> Iterator[tuple[bytes, bool]]:
    r"""Runs of lines whose quotes make whole fields (True), and single lines whose quotes do not (False).

    >>> list(split_lines(b'1,"a"\n2,"b\nc"\n3,d'))
    [(b'1,"a"\n', True), (b'2,"b\n', False), (b'c"\n', False), (b'3,d', True)]
    """
    position = 0
    while position < len(frame):
        match = _WHOLE_LINES.match(frame, position) if b'"' in frame else None
        end = match.end() if match is not None else len(frame)
        if end > position:
            yield frame[position:end], True
        position = end
        if position < len(frame) and (line := _ONE_LINE.match(frame, position)):
            yield frame[position : line.end()], False
            position = line.end()
