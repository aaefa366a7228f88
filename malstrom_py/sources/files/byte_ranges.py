r"""Which records belong to a range of bytes: those whose first byte lies in it, so that every record is in one range.

A record begins behind a line end, at the start of the file, or behind the header. A range is therefore read from the
first line end at or behind the byte before it, and one record beyond its last byte.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, Final

from malstrom_py.errors import SourceError

_CHUNK_BYTES: Final = 1 << 16

LINE_END: Final = re.compile(rb"\n")
CSV_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


def record_bounds(path: Path, start: int, stop: int, *, begin: int, line_end: re.Pattern[bytes]) -> tuple[int, int]:
    """Where the first record of the range begins, and where the last one ends; equal if there is none.

    ``begin`` is where the first record of the file stands. `SourceError` if the file ends before the range.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if start and start >= size:
            raise SourceError(
                f"it has {size} bytes, and its part begins at byte {start}: the file changed since it was split. "
                f"Restore the file, or start the job without resuming"
            )
        first = begin if start <= begin else _behind_line_end(file, start - 1, line_end)
        return first, begin if stop <= begin else _behind_line_end(file, stop - 1, line_end)


def _behind_line_end(file: IO[bytes], offset: int, line_end: re.Pattern[bytes]) -> int:
    """Where the first line end at or behind ``offset`` ends; the end of the file if there is none."""
    offset = min(file.seek(0, 2), offset)
    file.seek(offset)
    while chunk := file.read(_CHUNK_BYTES):
        if chunk.endswith(b"\r"):
            # It may be the first half of \r\n.
            chunk += file.read(1)
        if match := line_end.search(chunk):
            return offset + match.end()
        offset += len(chunk)
    return offset
