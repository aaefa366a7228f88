"""The files of one writer between two pre-commits: one open per folder, the next begins when it is large enough.

A writer of one worker: pieces wait until they are worth a write, files roll over, and stand staged at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.encoding import Encoder, WriteBuffer
from malstrom_py.sinks.files.staging import Staging, WrittenFile, sink_errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

OPEN_MAX: Final = 64
"""Files that are open at once; for one more, the one that was not written for longest is finished."""


@dataclass(slots=True, eq=False)
class RollingFile:
    """A file that is being written. A parquet file has a ``writer``, which ends it when it is closed."""

    folder: str
    path: Path
    stream: IO[bytes]
    schema: pa.Schema | None = None
    writer: pq.ParquetWriter | None = None


class RollingFiles:
    """Creates, syncs and forgets files in ``staging``; a file of ``file_bytes_max`` bytes or more gets no more rows."""

    def __init__(self, staging: Staging, extension: str, *, file_bytes_max: int) -> None:
        self._staging = staging
        self._extension = extension
        self._file_bytes_max = file_bytes_max
        self._number = 0
        self._open: OrderedDict[str, RollingFile] = OrderedDict()
        self.written: list[WrittenFile] = []

    def __contains__(self, folder: str) -> bool:
        """Whether a file of ``folder`` is open."""
        return folder in self._open

    def current(self, folder: str) -> RollingFile:
        """The open file of ``folder``; a new one if there is none."""
        if folder in self._open:
            self._open.move_to_end(folder)
            return self._open[folder]
        while len(self._open) >= OPEN_MAX:
            self.finish(next(iter(self._open)))
        path, stream = self._staging.create(self._number, self._extension)
        self._number += 1
        self._open[folder] = file = RollingFile(folder, path, stream)
        return file

    def roll(self, folder: str) -> None:
        """Finish the open file of ``folder`` if it is large enough to begin another."""
        if self._open[folder].stream.tell() >= self._file_bytes_max:
            self.finish(folder)

    def finish(self, folder: str) -> WrittenFile:
        """Make the open file of ``folder`` durable and close it."""
        file = self._open[folder]
        if file.writer is not None:
            file.writer.close()
        file.stream.flush()
        os.fsync(file.stream.fileno())
        file.stream.close()
        del self._open[folder]
        written = WrittenFile(file.path, folder, file.schema)
        self.written.append(written)
        return written

    def finish_all(self) -> None:
        """Make every open file durable and close it."""
        for folder in tuple(self._open):
            self.finish(folder)

    def replace(self, old: WrittenFile, new: WrittenFile) -> None:
        """Remove a finished file: a ``new`` one, finished last, takes its place among the others."""
        self.written.remove(new)
        self.written[self.written.index(old)] = new
        old.path.unlink()

    def pre_commit(self, snapshot: str) -> bytes:
        """Hand the finished files over to ``snapshot``; the payload."""
        payload = self._staging.pre_commit(self.written, snapshot)
        self.written = []
        return payload

    def discard(self) -> None:
        """Remove all that is not pre-committed."""
        paths = [file.path for file in self.written] + [file.path for file in self._open.values()]
        for file in self._open.values():
            # What they could not write is thrown away.
            with contextlib.suppress(Exception):
                if file.writer is not None:
                    file.writer.close()
            with contextlib.suppress(OSError):
                file.stream.close()
        self._open.clear()
        self.written = []
        try:
            self._staging.discard(paths)
        finally:
            self._staging.release()


class FilesWriter:
    """Writes what one worker has into staged files. ``root`` is named in errors."""

    def __init__(self, root: str, files: RollingFiles, encoder: Encoder[Any], *, file_bytes_max: int) -> None:
        self._root = root
        self._files = files
        self._encoder = encoder
        self._file_bytes_max = file_bytes_max
        self._held = WriteBuffer(encoder.merge)

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        if not len(batch):
            return
        with sink_errors("cannot write to", self._root):
            for piece in self._encoder.encode(batch):
                group_bytes = min(self._encoder.group_bytes, self._file_bytes_max)
                folder = self._held.add(piece, group_bytes=group_bytes)
                if folder is not None:
                    self._encoder.write(folder, self._held.take(folder))

    def pre_commit(self, context: CommitContext) -> bytes:
        """See `TransactionalWriter.pre_commit`."""
        with sink_errors("cannot write to", self._root):
            # Those whose file is open come first: none is closed to make room, only to be begun anew.
            for folder in sorted(self._held, key=lambda folder: folder not in self._files):
                self._encoder.write(folder, self._held.take(folder))
            self._encoder.finish()
            return self._files.pre_commit(context.snapshot)

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._held.clear()
        self._files.discard()
