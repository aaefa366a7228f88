"""The writer of one worker: it buffers encoded rows, writes them into rolling files, and stages the files.

Each folder has one open file; a file that is large enough is finished, and the next one begins.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.encoding import Encoder, WriteBuffer
from malstrom_py.sinks.files.schemas import packed
from malstrom_py.sinks.files.staging import WrittenFile, sink_errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

OPEN_MAX: Final = 64
"""The limit of open files; above it the least recently written one is finished."""


@dataclass(slots=True, eq=False)
class RollingFile:
    """A file that is being written. A parquet file has a ``writer``, which writes the footer when it is closed."""

    folder: str
    path: Path
    stream: IO[bytes]
    schema: pa.Schema | None = None
    writer: pq.ParquetWriter | None = None


class Stages(Protocol):
    """Where files are while they are written, and until their commit: `Staging`, or `objects.ObjectStaging`."""

    def create(self, number: int, extension: str) -> tuple[Path, IO[bytes]]:
        """Create an empty file."""
        ...

    def pre_commit(self, written: Sequence[WrittenFile], snapshot: str) -> bytes:
        """Make the ``written`` files durable under ``snapshot``; return the payload, which names them."""
        ...

    def discard(self, paths: Sequence[Path]) -> None:
        """Remove files that were never pre-committed."""
        ...

    def release(self) -> None:
        """Release what protects the files from other runs."""
        ...


class RollingFiles:
    """Creates, syncs and closes files in ``staging``; a file of ``file_bytes_max`` bytes or more gets no more rows."""

    def __init__(self, staging: Stages, extension: str, *, file_bytes_max: int) -> None:
        self._staging = staging
        self._extension = extension
        self._file_bytes_max = file_bytes_max
        self._number = 0
        self._open: OrderedDict[str, RollingFile] = OrderedDict()
        self.written: list[WrittenFile] = []

    def __contains__(self, folder: str) -> bool:
        """Return whether a file of ``folder`` is open."""
        return folder in self._open

    def current(self, folder: str) -> RollingFile:
        """Return the open file of ``folder``; create one if there is none."""
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
        """Finish the open file of ``folder`` if it is large enough."""
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
        """Remove the finished file ``old``; ``new``, the file finished last, takes its place in the order."""
        self.written.remove(new)
        self.written[self.written.index(old)] = new
        old.path.unlink()

    def pre_commit(self, snapshot: str) -> bytes:
        """Pre-commit the finished files under ``snapshot``; return the payload."""
        payload = self._staging.pre_commit(self.written, snapshot)
        self.written = []
        return payload

    def discard(self) -> None:
        """Remove all files that are not pre-committed."""
        paths = [file.path for file in self.written] + [file.path for file in self._open.values()]
        for file in self._open.values():
            # The files are removed, so their errors do not matter.
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
    """Writes the batches of one worker into staged files. Errors name ``root``."""

    def __init__(self, root: str, files: RollingFiles, encoder: Encoder[Any], *, file_bytes_max: int) -> None:
        self._root = root
        self._files = files
        self._encoder = encoder
        self._file_bytes_max = file_bytes_max
        self._buffer = WriteBuffer(encoder.merge)

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        if not len(batch):
            return
        with sink_errors("cannot write to", self._root):
            for piece in self._encoder.encode(batch):
                group_bytes = min(self._encoder.group_bytes, self._file_bytes_max)
                folder = self._buffer.add(piece, group_bytes=group_bytes)
                if folder is not None:
                    self._encoder.write(folder, self._buffer.take(folder))

    def pre_commit(self, context: CommitContext) -> bytes:
        """See `TransactionalWriter.pre_commit`."""
        with sink_errors("cannot write to", self._root):
            # Folders with an open file come first: no file is closed at the limit and then followed by a second one.
            for folder in sorted(self._buffer, key=lambda folder: folder not in self._files):
                self._encoder.write(folder, self._buffer.take(folder))
            self._encoder.finish()
            schema = self._encoder.staged_schema if self._files.written else None
            payload = self._files.pre_commit(context.snapshot)
        return payload if schema is None else json.dumps({**json.loads(payload), "schema": packed(schema)}).encode()

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._buffer.clear()
        self._files.discard()
