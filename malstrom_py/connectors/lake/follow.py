"""What comes after the pinned version of a table: the files that each later version adds, in order.

Rule: a version is read only if it adds rows, or rewrites files with the same rows. One that changes or deletes rows is
an error: steps have counted these rows already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from malstrom_py.errors import SourceError, lasting
from malstrom_py.sources.base import BasePart
from malstrom_py.sources.pinned.row_groups import PinnedFile

_WAIT_S: Final = 0.5
"""How long a poll without a new version takes. It runs in a thread that reads ahead."""


class TableLog(Protocol):
    """The versions of a table. A place is where the versions that are not read yet start, as a number."""

    def place_after(self, version: int) -> int:
        """Return the place after ``version``."""
        ...

    def read(self, place: int) -> tuple[list[PinnedFile], int] | None:
        """Return the files that the version at ``place`` adds, and the place after it; None if it does not exist yet.

        SourceError: it changes or deletes rows, or the log does not have it any more, or cannot be read.
        """
        ...


class FromPinned:
    """A ``log`` whose first version has the pinned ``files``; ``after`` is the place of the version that follows."""

    FIRST: Final = -1
    """The place of the pinned files."""

    def __init__(self, log: TableLog, files: Sequence[PinnedFile], after: int) -> None:
        self._log = log
        self._files = files
        self._after = after

    def place_after(self, version: int) -> int:
        """See `TableLog`."""
        return self._log.place_after(version)

    def read(self, place: int) -> tuple[list[PinnedFile], int] | None:
        """See `TableLog`."""
        return ([*self._files], self._after) if place == self.FIRST else self._log.read(place)


class LaterVersions(BasePart[Any]):
    """The rows of the versions from ``position`` on, which never end: those of one file after the other.

    ``open_file`` opens a file of a version; its positions are those of this part.
    """

    def __init__(
        self,
        log: TableLog,
        open_file: Callable[[PinnedFile, dict[str, Any]], BasePart[Any]],
        position: dict[str, Any],
    ) -> None:
        self._log = log
        self._open_file = open_file
        self._position = position
        self._version: tuple[list[PinnedFile], int] | None = None
        self._opened: BasePart[Any] | None = None

    def poll(self, rows_max: int) -> Any:
        while self._opened is not None or self._open_next():
            assert self._opened is not None
            rows = self._opened.poll(rows_max)
            if rows is not None:
                return rows
            done = self._opened.snapshot()
            self.close()
            self._position = {**done, "index": done["index"] + 1, "row_group": 0, "records": 0, "finished": False}
        time.sleep(_WAIT_S)
        return None

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> dict[str, Any]:
        return dict(self._position) if self._opened is None else self._opened.snapshot()

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _open_next(self) -> bool:
        """Open the next file; return False if no version has one yet."""
        while True:
            self._version = self._version or self._log.read(self._position["version"])
            if self._version is None:
                return False
            files, after = self._version
            if self._position["index"] < len(files):
                self._opened = self._open_file(files[self._position["index"]], self._position)
                return True
            self._version = None
            self._position = {**self._position, "version": after, "index": 0}


def start_at(name: str, place: int) -> dict[str, Any]:
    """Return the position before the first row after ``place`` of the table ``name``."""
    here = {"version": place, "index": 0, "row_group": 0, "records": 0}
    return {"file": name, **here, "rows": 0, "finished": False}


def not_followed(why: str) -> SourceError:
    """Return the error for a version that cannot be read, with ``why``."""
    return lasting(SourceError(f"{why}, and start the job from the beginning under another job name"))


def changes_rows(where: str, kind: str) -> SourceError:
    """Return the error for a version that changes or deletes rows."""
    return lasting(
        SourceError(
            f"{where} changes or deletes rows, and sources.{kind}(follow=True) reads what is added: let writers append "
            f"only, or start the job from the beginning under another job name, which reads the table after it"
        )
    )
