"""A watched folder while it is read: one file after the other, without an end.

The position holds the files that were taken and the place in the current one. A file counts by its name: once taken
it is not read again as long as it is there, and what has gone is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.files.lazy_part import OpenedFile
from malstrom_py.sources.files.reading import TYPES_FILES, Reading, Types, is_missing, source_errors
from malstrom_py.sources.files.sections import Section
from malstrom_py.sources.files.watching import WatchedFolder

_FILES_PER_POLL: Final = 64


class FollowPart:
    """``types`` are those in ``state``; where it has none, ``find_types`` tells them by the first of some files."""

    def __init__(
        self,
        watched: WatchedFolder,
        reading: Reading,
        *,
        types: Types,
        find_types: Callable[[list[str]], Types],
        state: dict[str, Any] | None,
    ) -> None:
        self._watched = watched
        self._reading = reading
        self._types = self._types_of_file = types
        self._find_types = find_types
        self._taken: dict[str, None] = dict.fromkeys(state["taken"] if state else ())
        self._resume: dict[str, Any] | None = state["current"] if state else None
        self._new: deque[str] = deque()
        self._name = ""
        self._opened: OpenedFile | None = None

    def poll(self, rows_max: int) -> Any:
        is_listed = False
        # Files without rows, and such as have gone, are passed over, but not without end within one poll.
        for _ in range(_FILES_PER_POLL):
            if self._opened is None and self._resume is None and not self._new:
                if is_listed:
                    return None
                self._list()
                is_listed = True
            opened = self._opened or self._open_next()
            if opened is None:
                continue
            rows = self._poll(opened, rows_max)
            if opened.is_finished():
                self._taken[self._name] = None
                self._opened = None
                opened.close()
            if rows is not None and len(rows):
                return rows
        return None

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> dict[str, Any]:
        current = self._resume
        if self._opened is not None:
            position = self._opened.snapshot()
            # A file of which nothing has been read may go, or be read again from its start.
            current = {"file": self._name, "position": position} if position["rows"] else None
        return {
            "format": self._reading.options.format,
            "schema": self._types.schema,
            "first": self._types.first,
            "taken": list(self._taken),
            "current": current,
        }

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _poll(self, opened: OpenedFile, rows_max: int) -> Any:
        """Poll the current file; its types are those of all others once it has had a record, good or not."""
        try:
            rows = opened.poll(rows_max)
        except MalformedRecord:
            self._types = self._types_of_file
            raise
        if rows is not None:
            self._types = self._types_of_file
        return rows

    def _list(self) -> None:
        names = self._watched.names()
        if not names:
            # An empty folder may be a disk that is not there for a while: nothing is forgotten by it.
            return
        for name in [name for name in self._taken if name not in names]:
            if self._watched.has_gone(name):
                del self._taken[name]
        self._new.extend(self._watched.files({name: names[name] for name in names if name not in self._taken}))

    def _open_next(self) -> OpenedFile | None:
        """Go on to the next file; None if there is none, or it has gone since it was listed."""
        if self._resume is not None:
            return self._open_again(self._resume)
        if not self._new:
            return None
        files = [self._watched.path(name) for name in islice(self._new, TYPES_FILES)]
        name = self._new.popleft()
        try:
            types = self._find_types(files) if self._types.schema is None else self._types
            opened = self._open(name, types, self._reading.start_of(Section(name)))
        except SourceError as error:
            if is_missing(error):
                return None
            raise
        self._name, self._opened, self._types_of_file = name, opened, types
        return opened

    def _open_again(self, current: dict[str, Any]) -> OpenedFile:
        """Open the file in which the saved position stands."""
        name = current["file"]
        try:
            opened = self._open(name, self._types, current["position"])
        except SourceError as error:
            if is_missing(error):
                raise SourceError(
                    f"{self._watched.path(name)} has been read in part, as the saved position says, and is no longer "
                    f"there: put it back, or start the job without resuming."
                ) from error
            raise
        self._name, self._opened, self._resume = name, opened, None
        return opened

    def _open(self, name: str, types: Types, position: dict[str, Any]) -> OpenedFile:
        path = self._watched.path(name)
        with source_errors(path):
            return self._reading.open(path, Section(path), types, position, {})
