"""The files of one writer between two pre-commits: one is open, the next begins when it is large enough."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Final

from malstrom_py.sinks.files.staging import Staging

FILE_BYTES_MAX: Final = 1 << 28


class RollingFiles:
    """Creates, syncs and forgets files in ``staging``. At most one is open."""

    def __init__(self, staging: Staging, extension: str) -> None:
        self._staging = staging
        self._extension = extension
        self._number = 0
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        self.written: list[Path] = []

    def current(self) -> IO[bytes]:
        """The open file; a new one if there is none."""
        if self._file is None:
            self._path, self._file = self._staging.create(self._number, self._extension)
            self._number += 1
        return self._file

    def is_open(self) -> bool:
        """Whether a file is open."""
        return self._file is not None

    def is_full(self) -> bool:
        """Whether the open file is large enough to begin another."""
        return self._file is not None and self._file.tell() >= FILE_BYTES_MAX

    def finish_file(self) -> None:
        """Make the open file durable and close it."""
        if self._file is not None and self._path is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self.written.append(self._path)
            self._file = self._path = None

    def drop(self, path: Path) -> None:
        """Remove a finished file: another has taken its place."""
        self.written.remove(path)
        path.unlink()

    def pre_commit(self, snapshot: str) -> bytes:
        """Hand the finished files over to ``snapshot``; the payload."""
        payload = self._staging.pre_commit(self.written, snapshot)
        self.written = []
        return payload

    def discard(self) -> None:
        """Remove all that is not pre-committed."""
        paths = self.written
        if self._file is not None and self._path is not None:
            paths = [*paths, self._path]
            with contextlib.suppress(OSError):  # What it could not write is thrown away.
                self._file.close()
        self.written, self._file, self._path = [], None, None
        try:
            self._staging.discard(paths)
        finally:
            self._staging.release()
