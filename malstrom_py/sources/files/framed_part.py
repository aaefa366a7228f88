"""One csv, json or text file while it is read: frame by frame, each decoded as a whole, rows handed out as asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.frames import Cut, Frame, Framer
from malstrom_py.sources.files.runs import Cursor, Malformed, Run, text_of
from malstrom_py.sources.files.streams import READ_ERRORS, ByteStream, why_unreadable


class FramedPart:
    """The position is (offset of the frame, records taken from it): exact, whatever the sizes of the polls.

    ``remembered`` goes into each position as it is; ``begin`` is where the first record stands.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        cut: Cut,
        decode: Callable[[bytes], list[Run]],
        state: dict[str, Any] | None,
        remembered: dict[str, Any],
        begin: int = 0,
    ) -> None:
        state = state or {"offset": begin, "records": 0, "rows": 0, "finished": False}
        self._name = name
        self._decode = decode
        self._remembered = remembered
        self._cursor = Cursor()
        self._rows_before: int = state["rows"] - state["records"]
        self._skip: int = state["records"]
        self._finished: bool = state["finished"]
        self._frame = Frame(state["offset"], state["offset"], b"")
        stream = ByteStream(path)
        try:
            if not self._finished:
                stream.skip_to(state["offset"])
        except BaseException:
            stream.close()
            raise
        self._framer = Framer(stream, cut)

    def poll(self, rows_max: int) -> Any:
        try:
            while self._cursor.is_empty():
                if self._finished or not self._load():
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
        position = {"offset": self._frame.offset, "records": self._cursor.taken + self._skip}
        if self._cursor.is_empty() and not self._skip:
            position = {"offset": self._frame.end, "records": 0}
        return {**self._remembered, **position, "rows": self._rows() + self._skip, "finished": self._finished}

    def close(self) -> None:
        self._framer.close()

    def _rows(self) -> int:
        return self._rows_before + self._cursor.taken

    def _load(self) -> bool:
        """Go on to the next frame; False, and finished, if there is none."""
        frame = self._framer.next_frame()
        self._rows_before, self._cursor = self._rows(), Cursor()
        if frame is None:
            self._finished = True
            return False
        self._frame = frame
        self._cursor = Cursor(
            self._decode(frame.data) if frame.flaw is None else [Malformed(frame.flaw, text_of(frame.data))]
        )
        self._skip -= self._cursor.skip(self._skip)
        return True
