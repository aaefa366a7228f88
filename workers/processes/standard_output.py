"""Standard output of several processes in one pipe.

Rule: a line that fits into `select.PIPE_BUF` bytes, which a pipe takes whole or not at all, stays whole. It is written
when it ends, so it is not lost if the process is killed.
"""

from __future__ import annotations

import io
import select
import sys
from contextlib import suppress
from typing import Any, Final

_WHOLE: Final = select.PIPE_BUF


class _WholeLines(io.FileIO):
    """Writes at most `_WHOLE` bytes in a call, up to the end of a line if there is one."""

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        if len(view) > _WHOLE:
            view = view[: bytes(view[:_WHOLE]).rfind(b"\n") + 1 or None]
        written: int = super().write(view)
        return written


def keep_lines_whole() -> None:
    """Write what this process prints in whole lines."""
    with suppress(AttributeError, OSError, ValueError):  # there is no standard output
        former = sys.stdout
        raw = _WholeLines(former.fileno(), "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=former.encoding, errors=former.errors, line_buffering=True
        )


def flush() -> None:
    """Write what this process has printed so far."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a function has closed it, or its reader has
            stream.flush()
