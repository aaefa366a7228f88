"""Cuts a file into frames: runs of whole records, of at most about 1 MiB, so that memory is bounded by the frame.

Which records there are depends on nothing but the bytes from a frame's offset on, never on the sizes of the frames:
who starts again at the offset of a frame gets the same records, in frames of any size. That makes (offset of a frame,
records taken from there) an exact position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from malstrom_py.sources.files.streams import READ_ERRORS, ByteStream

FRAME_BYTES: Final = 1 << 20
FRAME_BYTES_MIN: Final = 1 << 14
RECORD_BYTES_MAX: Final = 1 << 24
_HEAD_BYTES: Final = 1 << 12

Cut = Callable[[bytes, bool], int]
"""(bytes from the start of a record on, whether the file ends with them) -> where the last whole record ends."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Whole records from ``offset`` up to ``end``. With ``flaw``: one unreadable record, ``data`` its beginning."""

    offset: int
    end: int
    data: bytes
    flaw: str | None = None


class Framer:
    """The frames of ``stream`` from where it stands, one after the other; ``cut`` knows the format's records."""

    def __init__(self, stream: ByteStream, cut: Cut) -> None:
        self._stream = stream
        self._cut = cut
        self._buffer = bytearray()
        self._ended = False
        self._damage: BaseException | None = None
        self.offset = stream.offset

    def next_frame(self, size: int | None = None) -> Frame | None:
        """The next frame, of about ``size`` bytes, at least 16 KiB and at most 1 MiB unless a record is larger.

        None at the end of the file. Damage is raised behind the last whole record.
        """
        goal = FRAME_BYTES if size is None else min(FRAME_BYTES, max(FRAME_BYTES_MIN, size))
        while True:
            self._fill(goal)
            # Chunks overshoot the goal by what was read before; a frame must not depend on that.
            window, is_all = bytes(self._buffer[:goal]), len(self._buffer) <= goal
            if cut := self._cut(window, self._ended and is_all):
                return self._take(cut)
            if self._damage is not None and is_all:
                raise self._damage
            if not window:
                return None
            if (self._ended and is_all) or goal == RECORD_BYTES_MAX:
                return self._take_flaw(window)
            goal = min(goal * 2, RECORD_BYTES_MAX)

    def close(self) -> None:
        """Let go of the file."""
        self._stream.close()

    def _fill(self, goal: int) -> None:
        while len(self._buffer) < goal and not self._ended and self._damage is None:
            try:
                chunk = self._stream.read()
            except READ_ERRORS as error:
                self._damage = error
                return
            self._buffer += chunk
            self._ended = not chunk

    def _take(self, size: int, flaw: str | None = None) -> Frame:
        frame = Frame(self.offset, self.offset + size, bytes(self._buffer[:size]), flaw)
        del self._buffer[:size]
        self.offset = frame.end
        return frame

    def _take_flaw(self, window: bytes) -> Frame:
        """The first line as a record of its own, so that the lines behind it have their chance."""
        line = window.find(b"\n") + 1
        if line or len(window) < RECORD_BYTES_MAX:
            return self._take(line or len(window), "a quoted field is never closed")
        head, start = window[:_HEAD_BYTES], self.offset
        while not (line := self._buffer.find(b"\n") + 1):
            self.offset += len(self._buffer)
            self._buffer.clear()
            self._fill(FRAME_BYTES)
            if not self._buffer:
                break
        self.offset += line
        del self._buffer[:line]
        return Frame(start, self.offset, head, f"a line is longer than {RECORD_BYTES_MAX >> 20} MiB")
