"""The writer of one worker: it buffers encoded rows, writes them into rolling files, and stages the files.

An `Encoder` turns each batch into `EncodedRows` per output folder. They wait in the `WriteBuffer` until a folder has
enough for one large write. Each folder has one open file; a file that is large enough is finished, and the next one
begins.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Generic, TypeVar

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import BaseTransactionalWriter, CommitContext
from malstrom_py.sinks.staged.payloads import StagedFile, pack
from malstrom_py.sinks.staged.problems import sink_errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from malstrom_py.sinks.staged import Stage

C = TypeVar("C")

OPEN_MAX: Final = 64
"""The limit of open files; above it the least recently written one is finished."""

GROUP_ROWS: Final = 1 << 17
"""The number of buffered rows at which a folder is written; also the largest row group."""

GROUP_BYTES: Final = 1 << 22
"""The default number of buffered bytes at which a folder is written."""

BUFFER_BYTES_MAX: Final = 1 << 25
"""The limit of buffered bytes of all folders; above it the folder with the most bytes is written."""

_MERGE_AT: Final = 64

_PAGE_BYTES: Final = 1 << 18
"""Smaller than pyarrow's default: compressing a page of one mebibyte takes several times its size."""


@dataclass(frozen=True, slots=True)
class EncodedRows(Generic[C]):
    """The encoded rows of one batch for one folder (relative to the root, empty for the root)."""

    folder: str
    content: C
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file, its target folder (relative to the root), and its schema if it has one."""

    path: Path
    folder: str
    schema: pa.Schema | None


class Encoder(Generic[C]):
    """Encodes batches of one file format and writes them into rolling files."""

    @property
    def group_bytes(self) -> int:
        """The number of buffered bytes at which a folder is written."""
        return GROUP_BYTES

    def encode(self, batch: Batch) -> Iterable[EncodedRows[C]]:
        """Encode ``batch`` for each folder, without writing."""
        raise NotImplementedError

    def rest(self) -> Iterable[EncodedRows[C]]:
        """Encode rows of earlier batches that are not encoded yet, before a pre-commit."""
        return ()

    def merge(self, folder: str, contents: Sequence[C]) -> EncodedRows[C]:
        """Merge encoded rows of one folder, which saves memory."""
        raise NotImplementedError

    def write(self, folder: str, contents: Sequence[C]) -> None:
        """Write encoded rows of one folder, in order."""
        raise NotImplementedError

    def finish(self, context: CommitContext) -> None:
        """Finish all open files; `SinkError` if they could not be committed under ``context``."""
        raise NotImplementedError

    def packed_schema(self) -> str | None:
        """Return the packed schema of the finished files, without types for columns of None; None without one."""
        return None

    def target_folder(self, folder: str) -> str:
        """Return what the ``folder`` of encoded rows is called in the place."""
        return folder

    def details(self, file: WrittenFile) -> Mapping[str, Any] | None:
        """Return what the committer needs of a finished file, in plain types."""
        return None

    def moved(self, version: int) -> None:
        """Take the new version of the routing table, where rows of several workers have an order."""


class WriteBuffer(Generic[C]):
    """Encoded rows that wait to be written, by folder, in order; at most `BUFFER_BYTES_MAX`.

    ``merge`` merges several: small ones take far more memory than their bytes.
    """

    def __init__(self, merge: Callable[[str, Sequence[C]], EncodedRows[C]]) -> None:
        self._merge = merge
        self._folders: dict[str, _FolderBuffer[C]] = {}
        self._bytes = 0

    def __iter__(self) -> Iterator[str]:
        """Iterate over the folders with buffered rows."""
        return iter(tuple(self._folders))

    def add(self, piece: EncodedRows[C], *, group_bytes: int) -> str | None:
        """Buffer ``piece``; return the folder that is to be written now, if any. ``group_bytes``: its limit."""
        buffer = self._folders.get(piece.folder)
        if buffer is None:
            buffer = self._folders[piece.folder] = _FolderBuffer()
        before = buffer.bytes
        buffer.add(piece, self._merge)
        self._bytes += buffer.bytes - before
        if buffer.rows >= GROUP_ROWS or buffer.bytes >= group_bytes:
            return piece.folder
        if self._bytes >= BUFFER_BYTES_MAX:
            return max(self._folders, key=lambda folder: self._folders[folder].bytes)
        return None

    def take(self, folder: str) -> list[C]:
        """Remove and return the encoded rows of ``folder``."""
        buffer = self._folders.pop(folder)
        self._bytes -= buffer.bytes
        return [piece.content for piece in (*buffer.merged, *buffer.fresh)]

    def clear(self) -> None:
        """Drop all buffered rows."""
        self._folders, self._bytes = {}, 0


class _FolderBuffer(Generic[C]):
    """The buffer of one folder. It merges in two levels, so that each row is copied at most twice."""

    def __init__(self) -> None:
        self.fresh: list[EncodedRows[C]] = []
        self.merged: list[EncodedRows[C]] = []
        self.rows = 0
        self.bytes = 0

    def add(self, piece: EncodedRows[C], merge: Callable[[str, Sequence[C]], EncodedRows[C]]) -> None:
        self.fresh.append(piece)
        self.rows += piece.rows
        self.bytes += piece.bytes
        if len(self.fresh) >= _MERGE_AT:
            self.merged.append(merge(piece.folder, [one.content for one in self.fresh]))
            self.fresh = []
            if len(self.merged) >= _MERGE_AT:
                self.merged = [merge(piece.folder, [one.content for one in self.merged])]
            self.bytes = sum(one.bytes for one in self.merged)


@dataclass(slots=True, eq=False)
class RollingFile:
    """A file that is being written. A parquet file has a ``writer``, which writes the footer when it is closed."""

    folder: str
    path: Path
    stream: IO[bytes]
    schema: pa.Schema | None = None
    writer: pq.ParquetWriter | None = None


class RollingFiles:
    """Creates, syncs and closes files of a stage; a file of ``file_bytes_max`` bytes or more gets no more rows.

    ``stage``: called for the first file, so that the place may be found by what is written.
    """

    def __init__(self, stage: Callable[[], Stage], extension: str, *, file_bytes_max: int) -> None:
        self._open_stage = stage
        self._stage: Stage | None = None
        self._extension = extension
        self.file_bytes_max = file_bytes_max
        self._number = 0
        self._open: OrderedDict[str, RollingFile] = OrderedDict()
        self.written: list[WrittenFile] = []

    def __contains__(self, folder: str) -> bool:
        """Return whether a file of ``folder`` is open."""
        return folder in self._open

    def open(self) -> Stage:
        """Return the stage; open it if it is not yet."""
        if self._stage is None:
            self._stage = self._open_stage()
        return self._stage

    def current(self, folder: str) -> RollingFile:
        """Return the open file of ``folder``; create one if there is none."""
        if folder in self._open:
            self._open.move_to_end(folder)
            return self._open[folder]
        while len(self._open) >= OPEN_MAX:
            self.finish(next(iter(self._open)))
        path, stream = self.open().create(self._number, self._extension)
        self._number += 1
        self._open[folder] = file = RollingFile(folder, path, stream)
        return file

    def parquet(self, folder: str, schema: pa.Schema) -> pq.ParquetWriter:
        """Return the writer of the open file of ``folder``; begin a new file if its schema differs."""
        import pyarrow.parquet as pq

        file = self.current(folder)
        if file.schema is not None and not schema.equals(file.schema):
            self.finish(folder)
            file = self.current(folder)
        if file.writer is None:
            file.schema = schema
            file.writer = pq.ParquetWriter(file.stream, schema, compression="zstd", data_page_size=_PAGE_BYTES)
        return file.writer

    def roll(self, folder: str) -> None:
        """Finish the open file of ``folder`` if it is large enough."""
        if self._open[folder].stream.tell() >= self.file_bytes_max:
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

    def pre_commit(self, snapshot: str) -> list[str]:
        """Pre-commit the finished files under ``snapshot``; return their names."""
        if self._stage is None:
            return []
        names = self._stage.pre_commit(self.written, snapshot)
        self.written = []
        return names

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
        if self._stage is not None:
            try:
                self._stage.discard(paths)
            finally:
                self._stage.release()


class StagedWriter(BaseTransactionalWriter):
    """Writes the batches of one worker into staged files. Errors name what ``where`` returns."""

    def __init__(self, where: Callable[[], str], files: RollingFiles, encoder: Encoder[Any]) -> None:
        self._where = where
        self._files = files
        self._encoder = encoder
        self._buffer = WriteBuffer(encoder.merge)

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        if len(batch):
            with sink_errors("cannot write to", self._where()):
                self._add(self._encoder.encode(batch))

    def moved(self, version: int) -> None:
        """See `SinkWriter`."""
        self._encoder.moved(version)

    def pre_commit(self, context: CommitContext) -> bytes:
        """See `TransactionalWriter.pre_commit`."""
        files, encoder = self._files, self._encoder
        with sink_errors("cannot write to", self._where()):
            self._add(encoder.rest())
            # Folders with an open file come first: no file is closed at the limit and then followed by a second one.
            for folder in sorted(self._buffer, key=lambda folder: folder not in files):
                encoder.write(folder, self._buffer.take(folder))
            encoder.finish(context)
            schema = encoder.packed_schema() if files.written else None
            described = [(encoder.target_folder(file.folder), encoder.details(file)) for file in files.written]
            names = files.pre_commit(context.snapshot)
        pairs = zip(names, described, strict=True)
        return pack([StagedFile(name, folder, schema, details) for name, (folder, details) in pairs])

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._buffer.clear()
        self._files.discard()

    def _add(self, pieces: Iterable[EncodedRows[Any]]) -> None:
        for piece in pieces:
            group_bytes = min(self._encoder.group_bytes, self._files.file_bytes_max)
            folder = self._buffer.add(piece, group_bytes=group_bytes)
            if folder is not None:
                self._encoder.write(folder, self._buffer.take(folder))
