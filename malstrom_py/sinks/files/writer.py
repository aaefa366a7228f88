"""A writer of one worker: pieces wait until they are worth a write, files roll over, and stand staged at the end."""

from __future__ import annotations

from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.encoders import Encoder
from malstrom_py.sinks.files.held import HeldPieces
from malstrom_py.sinks.files.rolling import RollingFiles
from malstrom_py.sinks.files.staging import sink_errors


class FilesWriter:
    """Writes what one worker has into staged files. ``root`` is named in errors."""

    def __init__(self, root: str, files: RollingFiles, encoder: Encoder[Any], *, file_bytes_max: int) -> None:
        self._root = root
        self._files = files
        self._encoder = encoder
        self._file_bytes_max = file_bytes_max
        self._held = HeldPieces(encoder.merged)

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        if not len(batch):
            return
        with sink_errors("cannot write to", self._root):
            for piece in self._encoder.pieces(batch):
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
