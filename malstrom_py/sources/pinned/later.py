"""What is added while a job runs: the Parquet files of one version after the other, as one partition without an end.

Versions are those of a table, or the batches of a stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from malstrom_py.sources.base import BasePart, Part
from malstrom_py.sources.files.ahead import AheadPart
from malstrom_py.sources.files.parquet import Filter, ParquetPart
from malstrom_py.sources.files.reading import LazyPart
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, RowGroupSource

if TYPE_CHECKING:
    import pyarrow as pa


class VersionLog(Protocol):
    """The versions, in order. A place is where the versions that are not read yet start, as a number."""

    def read(self, place: int) -> tuple[list[PinnedFile], int] | None:
        """Return the files that the version at ``place`` adds, and the place after it; None if it does not exist yet.

        SourceError: it changes or deletes rows, or the log does not have it any more, or cannot be read.
        """
        ...


class LaterVersions(BasePart[Any]):
    """The rows of the versions from ``position`` on, which never end: those of one file after the other.

    ``open_file`` opens a file of a version; its positions are those of this part. ``wait_s``: how long a poll without a
    new version takes, in a thread that reads ahead.
    """

    def __init__(
        self,
        log: VersionLog,
        open_file: Callable[[PinnedFile, dict[str, Any]], BasePart[Any]],
        position: dict[str, Any],
        wait_s: float,
    ) -> None:
        self._log = log
        self._wait_s = wait_s
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
        time.sleep(self._wait_s)
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


class GrowingRowGroups(RowGroupSource):
    """A pinned source of row groups, of which one more partition has the rows of later versions."""

    looks_every_s: ClassVar[float] = 0.5
    """How often a reader looks for a later version, in seconds."""

    def _later(self, pin: RowGroups, part: Part, start: dict[str, Any], log: VersionLog) -> AheadPart:
        """Open the partition of later versions at the position ``start``."""

        def open_file(file: PinnedFile, position: dict[str, Any]) -> ParquetPart:
            same = {name: position[name] for name in ("file", "version", "index")}
            self._check_later(file, pin.arrow_schema)
            return self._opened(pin, file, None, None, position, same)

        def opened(position: dict[str, Any]) -> LaterVersions:
            return LaterVersions(log, open_file, position, self.looks_every_s)

        filter = None if self._keep is None else Filter(self._keep, pin.names)
        return AheadPart(part, LazyPart(start, opened), filter)

    def _check_later(self, file: PinnedFile, schema: pa.Schema) -> None:
        """Raise `SourceError` unless a ``file`` of a later version has columns of ``schema``."""


def start_at(name: str, place: int) -> dict[str, Any]:
    """Return the position before the first row after ``place`` of ``name``."""
    here = {"version": place, "index": 0, "row_group": 0, "records": 0}
    return {"file": name, **here, "rows": 0, "finished": False}
