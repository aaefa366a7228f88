"""Records of one csv, json or text file while they are read: frame by frame, each decoded as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.frames import FRAME_BYTES, Framer
from malstrom_py.sources.files.runs import Cursor, Malformed, Run, text_of
from malstrom_py.sources.files.streams import READ_ERRORS, file_changed, why_unreadable


class FramedPart:
    """The position is (offset of a frame, records taken from there): exact, whatever the sizes of the polls.

    ``framer`` stands where ``position`` says; ``remembered`` goes into each position as it is. A frame holds
    hardly more records than a poll asks for, so that many parts that are read in turn hold little each in between.
    """

    def __init__(
        self,
        name: str,
        framer: Framer,
        *,
        decode: Callable[[bytes], list[Run]],
        position: dict[str, Any],
        remembered: dict[str, Any],
    ) -> None:
        self._name = name
        self._framer = framer
        self._decode = decode
        self._remembered = remembered
        self._cursor = Cursor()
        self._rows_before: int = position["rows"] - position["records"]
        self._skip: int = position["records"]
        self._finished = False
        self._begin = self._end = framer.offset
        self._record_bytes = 0

    def poll(self, rows_max: int) -> Any:
        try:
            while self._cursor.is_empty():
                if self._finished or not self._load(rows_max):
                    return None
        except READ_ERRORS as error:
            raise SourceError(
                f"{self._name} failed after {self._rows()} records were read: {why_unreadable(error)}."
            ) from error
        return self._cursor.take(rows_max, self._name, self._rows())

    def is_finished(self) -> bool:
        return self._finished

    def snapshot(self) -> dict[str, Any]:
        # What a restored part has yet to skip counts as taken.
        position = {"offset": self._begin, "records": self._cursor.taken + self._skip}
        if self._cursor.is_empty() and not self._skip:
            position = {"offset": self._end, "records": 0}
        return {**self._remembered, **position, "rows": self._rows() + self._skip, "finished": self._finished}

    def close(self) -> None:
        self._framer.close()

    def _rows(self) -> int:
        return self._rows_before + self._cursor.taken

    def _load(self, rows_max: int) -> bool:
        """Go on to the next frame; False, and finished, if there is none."""
        frame = self._framer.next_frame(FRAME_BYTES if self._skip else rows_max * self._record_bytes * 15 // 16)
        self._rows_before, self._cursor = self._rows(), Cursor()
        if frame is None:
            if self._skip:
                raise file_changed(self._name)
            self._finished = True
            return False
        runs = self._decode(frame.data) if frame.flaw is None else [Malformed(frame.flaw, text_of(frame.data))]
        self._begin, self._end = frame.offset, frame.end
        self._record_bytes = len(frame.data) // max(1, sum(map(len, runs)))
        self._cursor = Cursor(runs)
        self._skip -= self._cursor.skip(self._skip)
        return True
